"""The GPU engine: a plan of one decode step, weights packed for it, CUDA sources built at run time, two drivers."""
