// A teacher's log-probabilities. Input: the file.
#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/data/teacher_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brigade;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const TeacherFileHeader header = parse_teacher_header("x", bytes);
    BRIGADE_ASSERT(header.end <= size);
    BRIGADE_ASSERT(header.info.k <= header.info.vocabulary);
    const TeacherSummary summary = summarize_teacher("x", bytes, header, 1000);
    BRIGADE_ASSERT(summary.predicted <= summary.records);
    BRIGADE_ASSERT(summary.records <= header.num_tokens);
  } catch (const DataError&) {
  }
  return 0;
}
