// NumPy's .npy. Input: the file.
#include "brigade/base/error.h"
#include "tests/fuzz/check_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brigade;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    check_layout(parse_npy({"x", bytes}), size);
  } catch (const DataError&) {
  }
  return 0;
}
