// A dataset's documents as a person reads them: what counts in the loss, and
// what does not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace brigade {

// How tokens that count look among the others.
struct SampleMarks {
  std::string begin;  // before a run of them
  std::string end;
};

// The text of document `document` with a line in front that has its numbers.
// A text of several runs is decoded run by run. Throws what opening the dataset
// and its tokenizer throws. Precondition: there is such a document.
std::string show_sample(
    const std::filesystem::path& prefix,
    const std::string& tokenizer,
    uint64_t document,
    const SampleMarks& marks);

}  // namespace brigade
