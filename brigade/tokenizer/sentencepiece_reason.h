// What SentencePiece says of a failure, for people.
#pragma once

#include <string>

namespace brigade {

// The words of "Internal: file.cc(660) [condition] Vocabulary size too high.";
// empty where there are none behind the condition.
inline std::string words_of_sentencepiece(const std::string& reason) {
  const size_t condition = reason.rfind("] ");
  return condition == std::string::npos ? reason : reason.substr(condition + 2);
}

}  // namespace brigade
