// The products of the general driver in one format; `instances.h` names it: GEMV(name, FORMAT).
#include "gemv.cuh"

#define GEMV_KERNEL(name, FORMAT, OUTCOME) \
  KERNEL(name, 512, Gemv) {                \
    SHARED_MEMORY(memory);                 \
    gemv<FORMAT, OUTCOME>(p, memory);      \
  }
#define GEMV(name, FORMAT)                              \
  GEMV_KERNEL(gemv_stored_##name, FORMAT, STORED)       \
  GEMV_KERNEL(gemv_activated_##name, FORMAT, ACTIVATED) \
  GEMV_KERNEL(gemv_added_##name, FORMAT, ADDED)         \
  GEMV_KERNEL(gemv_chosen_##name, FORMAT, CHOOSES_EXPERTS)
#include "instances.h"
