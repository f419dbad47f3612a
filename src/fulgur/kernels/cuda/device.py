"""The few calls of the CUDA driver that the engine needs: what a GPU can do, load a cubin, launch a kernel."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from fulgur.errors import FulgurError

LIBRARY = "libcuda.so.1"  # comes with the driver
INSTALL = "In Fulgur's checkout: pip install -e '.[gpu]'"
# Attributes of a device, as the driver numbers them.
_MULTIPROCESSORS, _MEMORY_KHZ, _BUS_BITS, _L2 = 16, 36, 37, 38
_MAJOR, _MINOR, _COOPERATIVE, _SHARED = 75, 76, 95, 97


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    shared: int  # bytes a CTA may have
    cooperative: bool = True  # supports cooperative launches
    l2: int = 0
    bandwidth: float = 0.0  # bytes per second, from memory clock and bus width; reads reach 90 to 95% of it
    driver: tuple[int, int] = (0, 0)  # the CUDA version that the driver speaks

    @property
    def wgmma(self) -> bool:
        """Warpgroup matrix instructions: Hopper only."""
        return self.capability == (9, 0)

    @property
    def dependent_launch(self) -> bool:
        """Programmatic dependent launch came with Hopper."""
        return self.capability >= (9, 0)


def survey() -> list[Gpu]:
    """Every GPU that the driver shows, without torch; a FulgurError if there is no driver or no GPU."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        raise FulgurError(
            f"no NVIDIA driver: {LIBRARY} was not found", hint="Install the NVIDIA driver, or use the CPU."
        ) from None

    def call(name: str, *arguments: Any) -> None:
        status = getattr(cuda, name)(*arguments)
        if status == 100:
            raise FulgurError(
                "the NVIDIA driver shows no GPU",
                hint="Check that the machine has a GPU and that this container can see it.",
            )
        if status:
            raise FulgurError(
                f"the NVIDIA driver failed: {name} returned error {status}",
                hint="Check that nvidia-smi works; reboot the machine after a driver update.",
            )

    number = ctypes.c_int()
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(number))
    version = (number.value // 1000, number.value % 1000 // 10)
    call("cuDeviceGetCount", ctypes.byref(number))
    if not number.value:
        raise FulgurError("the NVIDIA driver shows no GPU", hint="Check whether CUDA_VISIBLE_DEVICES hides it.")
    found = []
    for index in range(number.value):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, 256, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        values = {}
        for key in (_MULTIPROCESSORS, _MEMORY_KHZ, _BUS_BITS, _L2, _MAJOR, _MINOR, _COOPERATIVE, _SHARED):
            # 0 for an attribute that a newer driver no longer knows: clock, bus and cache are only displayed.
            values[key] = 0 if cuda.cuDeviceGetAttribute(ctypes.byref(number), key, device) else number.value
        found.append(
            Gpu(
                name.value.decode(errors="replace"),
                (values[_MAJOR], values[_MINOR]),
                values[_MULTIPROCESSORS],
                size.value,
                values[_SHARED],
                bool(values[_COOPERATIVE]),
                values[_L2],
                2e3 * values[_MEMORY_KHZ] * values[_BUS_BITS] / 8,  # two transfers a clock
                version,
            )
        )
    return found


def probe(index: int = 0) -> Gpu:
    """GPU `index`, if there is a PyTorch that can use it; a FulgurError says what is missing."""
    gpus = survey()
    if index >= len(gpus):
        raise FulgurError(f"GPU {index} does not exist; {len(gpus)} found", hint="GPUs are numbered from 0.")
    try:
        import torch
    except ImportError:
        raise FulgurError("the GPU engine needs PyTorch", hint=INSTALL) from None
    if not torch.version.cuda:
        raise FulgurError(
            f"PyTorch {torch.__version__} is built without CUDA",
            hint="Install a CUDA build of PyTorch, or use the CPU.",
        )
    if not torch.cuda.is_available():
        raise FulgurError(
            f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}) cannot use this driver "
            f"(CUDA {gpus[index].driver[0]}.{gpus[index].driver[1]})",
            hint="Update the NVIDIA driver, or install a PyTorch for an older CUDA.",
        )
    return gpus[index]


def load_driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise FulgurError(f"the GPU engine needs cuda-bindings: {error}", hint=INSTALL) from None
    return driver


_HINTS = {
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "Another process holds part of the GPU, or it is shared (MIG, MPS): "
    "use the driver `graph`.",
    "CUDA_ERROR_NOT_SUPPORTED": "Use the driver `graph`.",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "Update the NVRTC package and the driver.",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "Update the driver.",
    "CUDA_ERROR_OUT_OF_MEMORY": "Set a smaller kv_tokens or narrower weights (bits).",
}


def _check(result: tuple[Any, ...], what: str) -> Any:
    status = result[0]
    if int(status) != 0:
        name = str(getattr(status, "name", status))
        raise FulgurError(f"{what} failed: {name}", hint=_HINTS.get(name))
    return result[1] if len(result) > 1 else None


class Module:
    """One loaded cubin and its kernels."""

    def __init__(self, cubin: bytes) -> None:
        import torch

        self._cu = load_driver()
        torch.cuda.synchronize()  # the driver calls below need torch's context to exist and to be current
        self._module = _check(self._cu.cuModuleLoadData(cubin), "loading the GPU code")
        self._functions: dict[str, tuple[Any, int]] = {}  # with the shared memory that each was allowed
        self._configs: dict[tuple[int, int, int, int, bool, bool], Any] = {}

    def function(self, name: str, shared: int) -> Any:
        """The kernel, which may be launched with this much shared memory from now on."""
        cu = self._cu
        found, allowed = self._functions.get(name, (None, -1))
        if found is None:
            found = _check(cu.cuModuleGetFunction(self._module, name.encode()), f"finding {name}")
        if shared > allowed:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(cu.cuFuncSetAttribute(found, attribute, shared), f"{shared} bytes of shared memory for {name}")
            self._functions[name] = found, shared
        return found

    def launch(
        self,
        name: str,
        args: ctypes.Structure | list[int],
        *,
        ctas: int,
        threads: int,
        shared: int,
        stream: int,
        cooperative: bool = False,
        dependent: bool = False,
    ) -> None:
        key = (ctas, threads, shared, stream, cooperative, dependent)
        config = self._configs.get(key)
        if config is None:  # making one takes longer than the launch
            config = self._configs[key] = self._config(*key)
        # A structure by value, or the addresses of several plain arguments.
        addresses = args if isinstance(args, list) else [ctypes.addressof(args)]
        parameters = (ctypes.c_void_p * len(addresses))(*addresses)
        function = self.function(name, shared)
        _check(self._cu.cuLaunchKernelEx(config, function, ctypes.addressof(parameters), 0), f"launching {name}")

    def _config(self, ctas: int, threads: int, shared: int, stream: int, cooperative: bool, dependent: bool) -> Any:
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
        return config

    def close(self) -> None:
        _check(self._cu.cuModuleUnload(self._module), "unloading the GPU code")
