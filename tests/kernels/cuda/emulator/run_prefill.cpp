// Runs one launch of a kernel of prefill.cu, batch.cu, delta_prefill.cu, prompt.cu or wide.cu. Built once for each set of instances;
// called through ctypes.
#include "prefill.cu"
#include "batch.cu"
#include "delta_prefill.cu"
#include "prompt.cu"
#include "wide.cu"

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
  const int sizes[] = {sizeof(Product), sizeof(Norm), sizeof(Rope),    sizeof(Gather), sizeof(Attended),
                       sizeof(Route),   sizeof(Sort), sizeof(Combine), sizeof(Widen),  sizeof(Swiglu),
                       sizeof(StepNorm), sizeof(StepRope), sizeof(StepAttend), sizeof(StepRoute),
                       sizeof(StepAdvance),
                       sizeof(DeltaPrompt), sizeof(PromptRope), sizeof(PromptAttended), sizeof(PromptRoute), sizeof(SolveRoom), sizeof(ScanRoom)};
  return which < (int)(sizeof sizes / 4) ? sizes[which] : -1;
}
