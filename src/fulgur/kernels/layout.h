// The data the kernels work on. Plain views: nobody here owns memory.
//
// Weights, layout "rows16": rows are taken 16 at a time (a tile), because 16 int32 accumulators are one AVX-512
// register, two AVX2 registers, one AMX row. A tile is
//     scales   fp16 [groups][16], padded to 64 bytes
//     weights  int8: for k in steps of 4, 64 bytes = 16 rows x 4 consecutive k, value q + 128
//              int4: for k in steps of 8, 64 bytes = 16 rows x 4 bytes, byte j = (q[k+j]+8) | (q[k+4+j]+8) << 4
// so a matrix-vector product reads every byte once, in order, and needs no horizontal sum. Weights are unsigned with
// an offset because that is what VNNI and AMX multiply; the offset is taken back with the sum of the activations.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fulgur {

constexpr int kTileRows = 16;
constexpr int kBlockTokens = 64;  // tokens in one KV block

struct Matrix {
  const uint8_t* data = nullptr;
  int bits = 8;
  int group = 64;
  int rows = 0;  // as the model has them; tiles() rounds up
  int cols = 0;

  int offset() const { return bits == 8 ? 128 : 8; }
  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int groups() const { return cols / group; }
  size_t scale_bytes() const { return (static_cast<size_t>(groups()) * kTileRows * 2 + 63) & ~size_t{63}; }
  size_t tile_bytes() const { return scale_bytes() + static_cast<size_t>(cols) * kTileRows * bits / 8; }
  size_t bytes() const { return tile_bytes() * tiles(); }
};

// Activations of a step, quantised to int8 per group of the matrix they will meet.
struct Acts {
  int8_t* q = nullptr;            // [row][stride]
  float* scale = nullptr;         // [row][group_stride]
  int32_t* correction = nullptr;  // [row][group_stride]: -(weight offset) * sum of q over the group
  size_t stride = 0;
  size_t group_stride = 0;
};

// One KV block of one layer and one KV head: 64 keys, then 64 values, bf16.
//   keys    [4 tiles of 16 keys][head_dim / 2][16 keys] of pairs (dims 2i, 2i+1): 16 dot products at once
//   values  [32 key pairs][head_dim] of pairs (keys 2j, 2j+1)
struct KvCache {
  uint32_t* data = nullptr;
  int layers = 0, kv_heads = 0, head_dim = 0, blocks = 0;

  size_t half() const { return static_cast<size_t>(kBlockTokens) * head_dim / 2; }  // in uint32
  size_t block_stride() const { return static_cast<size_t>(layers) * kv_heads * half() * 2; }
  uint32_t* keys(int block, int layer, int head) const {
    return data + block * block_stride() + (static_cast<size_t>(layer) * kv_heads + head) * half() * 2;
  }
  uint32_t* values(int block, int layer, int head) const { return keys(block, layer, head) + half(); }
};

inline uint16_t to_bf16(float value) {  // round to nearest even
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace fulgur
