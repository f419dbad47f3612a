// Runs one launch of a kernel of sample.cu. Called through ctypes.
#include "sample.cu"

struct Args {
  const void* of;
  void (*kernel)(const Sample);
};
struct State {};
struct Mailbox {};
static void call(const Args args) { args.kernel(*(const Sample*)args.of); }
#include "run.cpp"

extern "C" int emulate_sample(void (*function)(const Sample), const void* of, int ctas, int threads, int shared_bytes,
                              u32 seed) {
  const Args args{of, function};
  emu::later.clear();
  return emulate(call, &args, ctas, threads, shared_bytes, seed);
}
// Bytes of every structure, so that both sides agree.
extern "C" int size_of(int which) {
  const int sizes[] = {sizeof(SampleRow), sizeof(Sample), sizeof(Part), sizeof(Room)};
  return sizes[which];
}
