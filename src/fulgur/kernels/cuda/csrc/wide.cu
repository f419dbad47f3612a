// One product of prefill. `instances.h` says which: INSTANCE(name, FORMAT, TOKENS, EPILOGUE).
#include "wide.cuh"

#define INSTANCE(name, FORMAT, TOKENS, EPILOGUE)  \
  KERNEL(name, 384, Product) {                    \
    SHARED_MEMORY(memory);                        \
    product<FORMAT, TOKENS, EPILOGUE>(p, memory); \
  }
#include "instances.h"
