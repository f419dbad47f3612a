"""The KV cache on a GPU: keys and values in bf16, or in 8 bits (csrc/cache.cuh).

In 8 bits a value is an e4m3 code times a power of two; all dimensions of one head of one token share the exponent.
Every reader gets the same bf16 out of it, so what a step computes does not depend on which kernel reads or wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fulgur.errors import FulgurError
from fulgur.kernels.cuda.device import Gpu
from fulgur.kernels.cuda.plan import KV_BLOCK

if TYPE_CHECKING:
    import torch

DTYPES = ("bf16", "fp8")
OLDEST = (8, 9)  # compute capability that converts to e4m3
ORDER = (0, 2, 1, 3)  # of the codes of four dimensions


def check_dtype(dtype: str, gpu: Gpu) -> None:
    """Refuse a type that this GPU cannot store."""
    if dtype not in DTYPES:
        raise FulgurError(f"kv_dtype {dtype!r} is not supported on a GPU", hint=f"Choose {' or '.join(DTYPES)}.")
    if dtype == "fp8" and gpu.capability < OLDEST:
        major, minor = gpu.capability
        raise FulgurError(
            f"kv_dtype 'fp8' needs compute capability {OLDEST[0]}.{OLDEST[1]}, but the {gpu.name} has {major}.{minor}",
            hint="Leave kv_dtype unset to store keys and values in bf16.",
        )


def dtype_note(dtype: str) -> str:
    """For the line that says what was opened: only what is unusual."""
    return "" if dtype == "bf16" else f", keys and values in {dtype}"


def bytes_per_token(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    return 2 * layers * kv_heads * (2 * head_dim if dtype == "bf16" else head_dim + 1)


class KvCache:
    """`held` [layer, key or value, block, kv head, 64, head_dim] as bf16, or as codes with `exponents` [..., 64]."""

    def __init__(self, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: str, device: Any) -> None:
        import torch

        self.dtype = dtype
        shape, narrow = (layers, 2, blocks, kv_heads, KV_BLOCK), dtype == "fp8"
        kind = torch.uint8 if narrow else torch.bfloat16
        self.held = torch.zeros((*shape, head_dim), dtype=kind, device=device)
        self.exponents = torch.zeros(shape, dtype=torch.uint8, device=device) if narrow else None

    @property
    def device(self) -> torch.device:
        return self.held.device

    @property
    def nbytes(self) -> int:
        return self.held.nbytes + (0 if self.exponents is None else self.exponents.nbytes)

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors by the names of the decode kernels."""
        return {"kv": self.held} | ({} if self.exponents is None else {"exponents": self.exponents})

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in bf16, as attention of prompts reads it."""
        return 2 * self.held[0].numel()

    def layer(self, layer: int) -> dict[str, Any]:
        """The tensors of a layer by the names that kernels give them; no exponents: null pointers."""
        found = {"keys": self.held[layer, 0], "values": self.held[layer, 1]}
        if self.exponents is not None:
            found |= {"key_exponents": self.exponents[layer, 0], "value_exponents": self.exponents[layer, 1]}
        return found

    def addresses(self) -> dict[str, tuple[int, int]]:
        """By the same names: the address in layer 0, and the bytes to that in the next layer."""
        return {
            name: (tensor.data_ptr(), 2 * tensor.nbytes)  # keys and values of a layer lie side by side
            for name, tensor in self.layer(0).items()
        }

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor, position: int, table: torch.Tensor) -> None:
        """Store keys and values [token, kv head, head_dim] of consecutive positions."""
        import torch

        here = torch.arange(position, position + len(keys), device=keys.device)
        block, slot = table[here // KV_BLOCK].long(), here % KV_BLOCK
        for kind, given in enumerate((keys, values)):
            if self.exponents is None:
                self.held[layer, kind][block, :, slot] = given.bfloat16()
            else:
                codes, exponents = to_fp8(given)
                self.held[layer, kind][block, :, slot] = codes
                self.exponents[layer, kind][block, :, slot] = exponents

    def gathered(self, layer: int, length: int, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv head, token, head_dim] of the first positions, in bf16."""
        used = table[: -(-length // KV_BLOCK)].long()

        def of(kind: int) -> torch.Tensor:
            blocks = self.held[layer, kind][used]
            if self.exponents is not None:
                blocks = from_fp8(blocks, self.exponents[layer, kind][used])
            return blocks.transpose(0, 1).flatten(1, 2)[:, :length]

        return of(0), of(1)

    def copy_block(self, source: int, target: int) -> None:
        for tensor in (self.held, self.exponents):
            if tensor is not None:
                tensor[:, :, target] = tensor[:, :, source]

    def randomize(self) -> None:
        """Put random keys and values at every position, so that a benchmark can decode after them without a prompt."""
        import torch

        if self.exponents is None:
            self.held.normal_()
            return
        for codes, exponents in zip(self.held.flatten(0, 1), self.exponents.flatten(0, 1), strict=True):
            made = torch.empty_like(codes, dtype=torch.bfloat16).normal_()  # a layer at a time: it takes memory
            for to, part in zip((codes, exponents), to_fp8(made), strict=True):
                to.copy_(part)


def to_fp8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., dims] and exponents [...] of heads."""
    import torch

    short = values.bfloat16()
    largest = (short.view(torch.int16) & 0x7FFF).amax(-1, keepdim=True).int()  # bits have the order of magnitudes
    exponent = ((largest >> 7).clamp(min=16) + 113).clamp(max=254)
    scaled = (short.float() * ((374 - exponent) << 23).view(torch.float32)).clamp(-448, 448)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.unflatten(-1, (-1, 4))[..., ORDER].flatten(-2), exponent.squeeze(-1).to(torch.uint8)


def from_fp8(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """The values in bf16. Exponent and mantissa of a code, shifted into place, give 2^-120 times its value."""
    import torch

    plain = codes.unflatten(-1, (-1, 4))[..., ORDER].flatten(-2).int()
    small = ((plain & 0x80) << 24 | (plain & 0x7F) << 20).view(torch.float32)
    return (small * (exponents.int() << 23).view(torch.float32)[..., None]).bfloat16()
