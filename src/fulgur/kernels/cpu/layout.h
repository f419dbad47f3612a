// The data the kernels work on. These are views; they own no memory.
//
// Weights are processed 16 rows at a time (a tile), because 16 int32 accumulators are one AVX-512 register, two AVX2
// registers, one AMX row. A file holds them in layout "rows16", tile after tile:
//     scales   fp16 [groups][16], padded to 64 bytes
//     weights  int8: for k in steps of 4, 64 bytes (a line) = 16 rows x 4 consecutive k, value q + 128
//              int4: for k in steps of 8, a line = 16 rows x 4 bytes, byte j = (q[k+j]+8) | (q[k+4+j]+8) << 4
// In memory, `interleave` neighbouring tiles form a block, which a kernel multiplies at once:
//     for each group   the scales of every tile, then line by line the weights of every tile
// The blocks of a model lie in the order in which a thread reads them in a step (arrange.h). So a thread reads every
// byte once, in address order: one stream from the first product to the last, which the hardware prefetcher follows at
// full bandwidth, also beyond the end of a product. Weights are unsigned with an offset because that is what VNNI and
// AMX multiply; the sum of the activations corrects for the offset.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fulgur {

constexpr int kTileRows = 16;
constexpr size_t kLine = 64;      // bytes of one vector of weights
constexpr int kBlockTokens = 64;  // tokens in one KV block
constexpr int kKeysAtOnce = 32;   // keys scored at once

struct Matrix {
  const uint8_t* data = nullptr;
  int bits = 8;
  int group = 64;
  int rows = 0;  // as the model has them; tiles() rounds up
  int cols = 0;
  int interleave = 1;
  const uint8_t* const* blocks = nullptr;  // where each block of tiles lies; null: one after the other from `data`

  int offset() const { return bits == 8 ? 128 : 8; }
  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int groups() const { return cols / group; }
  // As it lies in a file.
  size_t scale_bytes() const { return (static_cast<size_t>(groups()) * kTileRows * 2 + 63) & ~size_t{63}; }
  size_t tile_bytes() const { return scale_bytes() + static_cast<size_t>(cols) * kTileRows * bits / 8; }
  size_t file_bytes() const { return tile_bytes() * tiles(); }
  // As it lies in memory.
  size_t lines() const { return static_cast<size_t>(group) * kTileRows * bits / 8 / kLine; }  // of a tile, in a group
  size_t group_bytes() const { return (kTileRows * 2 + lines() * kLine) * interleave; }
  size_t block_bytes() const { return group_bytes() * groups(); }
  size_t bytes() const { return block_bytes() * ((tiles() + interleave - 1) / interleave); }
  const uint8_t* block(int tile) const {
    return blocks ? blocks[tile / interleave] : data + tile / interleave * block_bytes();
  }
};

// Activations of a step, quantised to int8 per group of the matrix they will meet.
struct Acts {
  int8_t* q = nullptr;            // [row][stride]
  float* scale = nullptr;         // [group][group_stride]: the rows of a group, so that cores that write different
                                  // groups write different lines
  int32_t* correction = nullptr;  // the same: -(weight offset) * sum of q over the group
  float* square = nullptr;        // the same: sum of squares before a norm's weight
  size_t stride = 0;
  size_t group_stride = 0;
};

// Keys and values. In bf16, one block of one layer and one KV head is
//   keys    [2][head_dim / 2][32 keys] of pairs (dims 2i, 2i+1): 32 dot products at once
//   values  [32 key pairs][head_dim] of pairs (keys 2j, 2j+1)
// In 8 bits
//   keys    [2][head_dim / 4][32 keys] of four dims, value + 128; then bf16 scales [group of dims][64 keys]
//   values  [16][head_dim] of four keys; then bf16 scales [64 keys]
// Keys have one scale per group, since a few dimensions may be far larger than the rest; values have one per token.
// The keys of eight neighbouring blocks are contiguous, and so are their values: a sequence whose blocks are neighbours
// is read in long streams.
struct KvCache {
  uint32_t* data = nullptr;
  int layers = 0, kv_heads = 0, head_dim = 0, blocks = 0;
  int bits = 16;  // of a key or value: 16 or 8

  int key_group() const { return head_dim % 32 ? 16 : 32; }  // dims that share a scale, in 8 bits
  size_t half() const {                                      // the keys or the values of a block, in uint32
    const size_t values = static_cast<size_t>(kBlockTokens) * head_dim;
    return bits == 16 ? values / 2 : values / 4 + kBlockTokens * (head_dim / key_group()) / 2;
  }
  size_t size() const {
    return static_cast<size_t>((blocks + kRun - 1) / kRun) * kRun * layers * kv_heads * 2 * half();
  }
  uint32_t* keys(int block, int layer, int head) const {
    const size_t run = (static_cast<size_t>(block / kRun) * layers + layer) * kv_heads + head;
    return data + (run * 2 * kRun + block % kRun) * half();
  }
  uint32_t* values(int block, int layer, int head) const { return keys(block, layer, head) + kRun * half(); }

 private:
  static constexpr int kRun = 8;
};

inline uint16_t to_bf16(float value) {  // round to nearest even
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace fulgur
