"""The CUDA driver, as little of it as the engine needs: what the GPU can do, load a cubin, launch a kernel."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from fulgur.errors import FulgurError
from fulgur.kernels.gpu.records import Args


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    shared: int  # bytes a CTA may have

    @property
    def dependent_launch(self) -> bool:
        """Programmatic dependent launch came with Hopper."""
        return self.capability >= (9, 0)


def probe(index: int = 0) -> Gpu:
    """What GPU `index` can do; a FulgurError says what is missing."""
    try:
        import torch
    except ImportError:
        raise FulgurError("the GPU engine needs PyTorch", hint="pip install 'fulgur[gpu]'.") from None
    if not torch.cuda.is_available():
        built = "with" if torch.version.cuda else "without"
        raise FulgurError(
            f"no usable NVIDIA GPU: PyTorch {torch.__version__} is built {built} CUDA and finds no driver or no device",
            hint="Install the NVIDIA driver and a CUDA build of PyTorch, or use the CPU runtime.",
        )
    if index >= torch.cuda.device_count():
        raise FulgurError(f"there is no GPU {index}; {torch.cuda.device_count()} found")
    found = torch.cuda.get_device_properties(index)
    shared = getattr(found, "shared_memory_per_block_optin", 99 << 10)
    return Gpu(found.name, (found.major, found.minor), found.multi_processor_count, found.total_memory, shared)


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise FulgurError(f"the GPU engine needs cuda-bindings: {error}", hint="pip install 'fulgur[gpu]'.") from None
    return driver


def _check(result: tuple[Any, ...], what: str) -> Any:
    status = result[0]
    if int(status) != 0:
        raise FulgurError(f"{what} failed: {getattr(status, 'name', status)}")
    return result[1] if len(result) > 1 else None


class Module:
    """One loaded cubin and its kernels."""

    def __init__(self, cubin: bytes) -> None:
        import torch

        self._cu = _driver()
        torch.cuda.synchronize()  # the driver calls below need torch's context to exist and to be current
        self._module = _check(self._cu.cuModuleLoadData(cubin), "loading the GPU code")
        self._functions: dict[str, Any] = {}

    def function(self, name: str, shared: int) -> Any:
        if name not in self._functions:
            cu = self._cu
            found = _check(cu.cuModuleGetFunction(self._module, name.encode()), f"finding {name}")
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(cu.cuFuncSetAttribute(found, attribute, shared), f"{shared} bytes of shared memory for {name}")
            self._functions[name] = found
        return self._functions[name]

    def launch(
        self,
        name: str,
        args: Args | list[int],
        *,
        ctas: int,
        threads: int,
        shared: int,
        stream: int,
        cooperative: bool = False,
        dependent: bool = False,
    ) -> None:
        cu = self._cu
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared
        config.hStream = cu.CUstream(stream)
        attributes = []
        for wanted, key, field in (
            (cooperative, "CU_LAUNCH_ATTRIBUTE_COOPERATIVE", "cooperative"),
            (
                dependent,
                "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
                "programmaticStreamSerializationAllowed",
            ),
        ):
            if wanted:
                attribute, value = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
                setattr(value, field, 1)
                attribute.id = getattr(cu.CUlaunchAttributeID, key)
                attribute.value = value
                attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        # A structure by value, or the addresses of several plain arguments.
        addresses = args if isinstance(args, list) else [ctypes.addressof(args)]
        parameters = (ctypes.c_void_p * len(addresses))(*addresses)
        function = self.function(name, shared)
        _check(cu.cuLaunchKernelEx(config, function, ctypes.addressof(parameters), 0), f"launching {name}")

    def close(self) -> None:
        _check(self._cu.cuModuleUnload(self._module), "unloading the GPU code")
