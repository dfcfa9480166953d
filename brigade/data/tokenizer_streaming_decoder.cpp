#include "brigade/data/tokenizer_streaming_decoder.h"

#include <utility>

#include "brigade/data/tokenizer_utf8.h"

namespace brigade {
namespace {

// Longer than any character in tokens of one byte: what is incomplete after
// that many tokens is no text, and is given out as U+FFFD.
constexpr size_t kMaxPending = 16;

}  // namespace

std::string StreamingDecoder::new_text() const {
  std::vector<int32_t> all = context_;
  all.insert(all.end(), pending_.begin(), pending_.end());
  std::string whole = tokenizer_.decode(all, options_);
  const std::string before = tokenizer_.decode(context_, options_);
  return whole.size() <= before.size() ? std::string()
                                       : whole.substr(before.size());
}

std::string StreamingDecoder::take() {
  std::string text = new_text();
  context_ = std::exchange(pending_, {});
  return text;
}

std::string StreamingDecoder::push(int32_t id) {
  pending_.push_back(id);
  const std::string text = new_text();
  // Tokens without text (skipped specials, a dropped leading space) wait for
  // the next one: alone they would be no context.
  if (text.empty())
    return {};
  if (text.ends_with(kReplacementCharacter) && pending_.size() < kMaxPending)
    return {};
  return take();
}

std::string StreamingDecoder::finish() {
  std::string text = take();
  context_.clear();
  return text;
}

}  // namespace brigade
