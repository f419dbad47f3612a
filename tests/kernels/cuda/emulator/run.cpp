// Runs one launch of a driver's kernel. Built once for each generated constants.h; called through ctypes.
#ifdef DRIVER
#include DRIVER
#endif

namespace {
void (*kernel)(const Args);
const Args* arguments;
void body() {
  kernel(*arguments);
  emu::current->finished = true;
  emu::sleep();
}
}  // namespace

// Returns 0, or the number of threads that never ended.
extern "C" int emulate(void (*function)(const Args), const Args* args, int ctas, int threads, int shared_bytes,
                       u32 seed) {
  kernel = function;
  arguments = args;
  emu::noise = seed * 2654435761u + 1;
  std::vector<emu::Cta> grid(ctas);
  std::vector<std::unique_ptr<emu::Fiber>> fibers;
  emu::ready.clear();
  for (int c = 0; c < ctas; ++c) {
    emu::Cta& cta = grid[c];
    cta.memory.assign(shared_bytes + 128, (char)0xff);
    cta.base = (char*)(((uintptr_t)cta.memory.data() + 127) & ~(uintptr_t)127);
    cta.gate.members = threads;
    cta.warps.resize(threads / 32);
    cta.warpgroups.resize(threads / 128);
    for (int t = 0; t < threads; ++t) {
      fibers.push_back(std::make_unique<emu::Fiber>());
      emu::Fiber& f = *fibers.back();
      constexpr size_t STACK = 64 << 10;
      f.stack.reset(new char[STACK]);
      f.thread.x = t;
      f.block.x = c;
      f.grid.x = ctas;
      f.cta = &cta;
      f.warp = &cta.warps[t / 32];
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.get();
      f.context.uc_stack.ss_size = STACK;
      f.context.uc_link = nullptr;
      makecontext(&f.context, body, 0);
      emu::ready.push_back(&f);
    }
  }
  int left = (int)fibers.size(), picks = 0;
  while (!emu::ready.empty()) {
    // For a while some warps are held up, so that others of their CTA run far ahead.
    if (picks++ % emu::WHILE == 0)
      for (emu::Cta& cta : grid)
        for (emu::Warp& warp : cta.warps) warp.held = emu::random_bits() % 4 == 0;
    size_t pick = emu::random_bits() % emu::ready.size();
    for (int tries = 0; tries < 8 && emu::ready[pick]->warp->held; ++tries)
      pick = emu::random_bits() % emu::ready.size();
    emu::Fiber* next = emu::ready[pick];
    emu::ready[pick] = emu::ready.back();
    emu::ready.pop_back();
    emu::wake(next);
    if (emu::current->finished) --left;
  }
  for (const emu::Cta& cta : grid)  // a write beyond the end of shared memory
    for (const char* p = cta.base + shared_bytes; p < cta.memory.data() + cta.memory.size(); ++p)
      if (*p != (char)0xff) return -1;
  return left;
}
