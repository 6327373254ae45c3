"""The two things that pyproject.toml cannot say: the C core, and the ABI that its wheel is tagged with."""

import sysconfig

from setuptools import setup

# One wheel in the limited API of CPython 3.10 serves all later versions. Free-threaded builds have none.
tag = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp310"}

setup(cffi_modules=["csrc/build_core.py:ffibuilder"], options={"bdist_wheel": tag})
