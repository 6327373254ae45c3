"""What engines show at `/metrics`, cut to what matters. vLLM and llama.cpp as recorded from running servers; SGLang by the
names in its source, with two data-parallel ranks."""

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smol"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="smol"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="smol",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="smol",reason="deferred"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="smol"} 2682.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="smol"} 1.796e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="smol"} 1280.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="smol"} 1.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="46592",num_gpu_blocks="364"} 1.0
"""

VLLM_TWO_ENGINES = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 300.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 50.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 70.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500"} 1.0
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 7.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="m"} 2.0
sglang:num_queue_reqs{dp_rank="1",model_name="m"} 0.0
sglang:token_usage{dp_rank="0",model_name="m"} 0.9
sglang:token_usage{dp_rank="1",model_name="m"} 0.1
sglang:max_total_num_tokens{dp_rank="0",model_name="m"} 436528.0
sglang:max_total_num_tokens{dp_rank="1",model_name="m"} 436528.0
sglang:cached_tokens_total{model_name="m"} 1200.0
sglang:prompt_tokens_total{model_name="m"} 4000.0
sglang:num_retracted_reqs{model_name="m"} 3.0
"""

LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 33
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 31
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 4
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1.5
"""

LLAMACPP_SLOTS = (
    '[{"id":0,"n_ctx":2048,"speculative":false,"is_processing":false},'
    '{"id":1,"n_ctx":2048,"speculative":false,"is_processing":true}]'
)
