// Rearranges weights from the layout of a file into the one the kernels read (layout.h).
#pragma once
#include <cstring>
#include <thread>
#include <vector>

#include "model.h"

namespace fulgur {

// Writes the block of `w` that `tile` belongs to; `w` is still in the file's layout. `out`: w.block_bytes() zeroed
// bytes.
inline void arrange_block(const Matrix& w, int tile, uint8_t* out) {
  const size_t scales = kTileRows * 2, step = w.interleave * kLine;
  const int first = tile / w.interleave * w.interleave;
  for (int lane = 0; lane < w.interleave && first + lane < w.tiles(); lane++) {
    const uint8_t* from = w.data + (first + lane) * w.tile_bytes();
    const uint8_t* line = from + w.scale_bytes();
    uint8_t* to = out;
    for (int g = 0; g < w.groups(); g++, to += w.group_bytes()) {
      std::memcpy(to + lane * scales, from + g * scales, scales);
      uint8_t* p = to + w.interleave * scales + lane * kLine;
      for (size_t i = 0; i < w.lines(); i++, p += step, line += kLine) std::memcpy(p, line, kLine);
    }
  }
}

inline void arrange(Matrix& w, uint8_t* out) {
  for (int tile = 0; tile < w.tiles(); tile += w.interleave)
    arrange_block(w, tile, out + tile / w.interleave * w.block_bytes());
  w.data = out;
}

// Lays out all dense matrices thread by thread, in the order in which a thread reads them in a step. `out`: the bytes
// of all matrices, zeroed. Returns the table of block addresses that the matrices then point into.
inline std::vector<const uint8_t*> arrange(Model& model, int threads, uint8_t* out) {
  const auto each = [&](auto&& visit) {
    for (Layer& l : model.layers)
      for (Matrix* w : {&l.qkv, &l.o, &l.gate_up, &l.down})
        if (w->rows) visit(*w);
    visit(model.head);
    Drafting& drafting = model.drafting;
    for (Matrix* w : {&drafting.fc, &drafting.layer.qkv, &drafting.layer.o, &drafting.layer.gate_up,
                      &drafting.layer.down, &drafting.head})
      if (w->rows) visit(*w);
  };
  size_t count = 0;
  each([&](Matrix& w) { count += (w.tiles() + w.interleave - 1) / w.interleave; });
  std::vector<const uint8_t*> table(count);
  const uint8_t** next = table.data();
  each([&](Matrix& w) { w.blocks = next, next += (w.tiles() + w.interleave - 1) / w.interleave; });

  struct Move {
    const Matrix* w;
    int tile;
    uint8_t* to;
  };
  std::vector<Move> moves;
  moves.reserve(count);
  const auto take = [&](const Matrix& w, Range tiles) {
    for (int tile = tiles.begin / w.interleave * w.interleave; tile < tiles.end; tile += w.interleave) {
      const uint8_t*& place = table[static_cast<size_t>(w.blocks - table.data()) + tile / w.interleave];
      if (place) continue;  // already placed: two threads read some of its tiles
      moves.push_back({&w, tile, out});
      place = out;
      out += w.block_bytes();
    }
  };
  for (int t = 0; t < threads; t++) {
    const Division division{&model.dims, threads};
    for (const Layer& l : model.layers) {
      for (const Range r : division.projections(l.qkv, t)) take(l.qkv, r);
      for (const Matrix* w : {&l.o, &l.gate_up, &l.down})
        if (w->rows) take(*w, division.tiles(*w, t));
    }
    take(model.head, division.tiles(model.head, t));
    const Drafting& drafting = model.drafting;
    for (const Matrix* w : {&drafting.fc, &drafting.layer.qkv, &drafting.layer.o, &drafting.layer.gate_up,
                            &drafting.layer.down, &drafting.head})
      if (w->rows) take(*w, division.tiles(*w, t));
  }
  // A gigabyte is mostly page faults and memory: every thread takes a part.
  std::vector<std::thread> helpers;
  const auto move = [&](int t) {
    for (size_t i = moves.size() * t / threads; i < moves.size() * (t + 1) / threads; i++)
      arrange_block(*moves[i].w, moves[i].tile, moves[i].to);
  };
  for (int t = 1; t < threads; t++) helpers.emplace_back(move, t);
  move(0);
  for (std::thread& helper : helpers) helper.join();
  each([](Matrix& w) { w.data = nullptr; });
  return table;
}

}  // namespace fulgur
