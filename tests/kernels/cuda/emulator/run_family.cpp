// Runs one launch of a kernel of family.cu or gemv.cu. Built once for a set of formats; called through ctypes.
#include "family.cu"
#include "gemv.cu"

struct Args {
  const void* of;
  void (*kernel)(const void*);
};
struct State {};
struct Mailbox {};
static void call(const Args args) { args.kernel(args.of); }
#include "run.cpp"

extern "C" int emulate_one(void (*function)(const void*), const void* of, int ctas, int threads, int shared_bytes,
                           u32 seed) {
  const Args args{of, function};
  emu::later.clear();
  return emulate(call, &args, ctas, threads, shared_bytes, seed);
}
// Bytes of every structure, so that both sides agree.
extern "C" int size_of(int which) {
  const int sizes[] = {sizeof(Gemv),    sizeof(Begin),     sizeof(Delta),   sizeof(Draft), sizeof(Hidden), sizeof(StepRope),
                       sizeof(StepAttend), sizeof(StepRows), sizeof(Routing), (sizeof(GemvRoom) + 15) / 16 * 16,
                       sizeof(DeltaRoom)};
  return which < (int)(sizeof sizes / 4) ? sizes[which] : -1;
}
