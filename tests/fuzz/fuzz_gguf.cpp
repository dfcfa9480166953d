// The GGUF reader on arbitrary bytes: it accepts or throws DataError, and what
// it accepts lies within the file, tensor behind tensor.
#include <cstdint>
#include <cstdlib>

#include "brigade/base/error.h"
#include "brigade/gguf/reader.h"

namespace {

void require(bool holds) {
  if (!holds)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  brigade::GgufContents contents;
  try {
    contents = brigade::parse_gguf(file, "fuzz");
  } catch (const brigade::DataError&) {
    return 0;
  }
  const std::byte* end = file.data();
  for (const brigade::GgufTensor& tensor : contents.tensors) {
    require(tensor.data.data() >= end);
    end = tensor.data.data() + tensor.data.size();
    require(end <= file.data() + file.size());
    require(
        brigade::data_bytes({tensor.name, tensor.type, tensor.shape}) ==
        tensor.data.size());
  }
  return 0;
}
