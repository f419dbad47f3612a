"""A driver library that reports GPUs of our choice: the few calls that `device.survey` makes."""

from __future__ import annotations

from pathlib import Path

from emulate import compiled

SOURCE = """
extern "C" {
int cuInit(unsigned) { return INIT; }
int cuDriverGetVersion(int* v) { *v = 13010; return 0; }
int cuDeviceGetCount(int* n) { *n = COUNT; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int, int) {
  const char* text = "Fake H200";
  for (int i = 0; i < 10; ++i) name[i] = text[i];
  return 0;
}
int cuDeviceTotalMem_v2(unsigned long* size, int) { *size = 141ul << 30; return 0; }
int cuDeviceGetAttribute(int* value, int key, int) {
  switch (key) {
    case 16: *value = 132; break;
    case 36: *value = 3201000; break;
    case 37: *value = 6144; break;
    case 38: *value = 60 << 20; break;
    case 75: *value = MAJOR; break;
    case 76: *value = 0; break;
    case 95: *value = 1; break;
    case 97: *value = 232448; break;
    default: return 1;
  }
  return 0;
}
}
"""


def build(folder: Path, *, init: int = 0, count: int = 1, major: int = 9) -> str:
    values = [f"-DINIT={init}", f"-DCOUNT={count}", f"-DMAJOR={major}"]
    return str(compiled("cuda", {"cuda.cpp": SOURCE}, "cuda.cpp", folder, *values))
