"""The two things that pyproject.toml cannot say: the C core, and the ABI that its wheel is tagged with."""

import sysconfig

from setuptools import setup

# The limited API of CPython 3.10: one wheel serves every later version. Free-threaded builds have no limited API.
LIMITED_API = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp310"}}

setup(cffi_modules=["csrc/build_core.py:ffibuilder"], options=LIMITED_API)
