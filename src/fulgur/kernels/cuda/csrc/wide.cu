// One product of prefill, or of steps. `instances.h` says which: INSTANCE(name, FORMAT, TOKENS, EPILOGUE), or STEP.
#include "rows.cuh"

#define INSTANCE(name, FORMAT, TOKENS, EPILOGUE)  \
  KERNEL(name, 384, Product) {                    \
    SHARED_MEMORY(memory);                        \
    product<FORMAT, TOKENS, EPILOGUE>(p, memory); \
  }
#define STEP(name, FORMAT, TOKENS, EPILOGUE)           \
  KERNEL(name, 384, Product) {                         \
    SHARED_MEMORY(memory);                             \
    rows_product<FORMAT, TOKENS, EPILOGUE>(p, memory); \
  }
#include "instances.h"
