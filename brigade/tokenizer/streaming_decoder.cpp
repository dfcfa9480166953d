#include "brigade/tokenizer/streaming_decoder.h"

#include <utility>

#include "brigade/base/utf8.h"

namespace brigade {
namespace {

// Bounds the work of a token when characters never end with one.
constexpr size_t kMaxPending = 16;

// Without up to `most` U+FFFD at the end, which the tokens to come may turn
// into characters.
size_t stable_size(std::string_view text, size_t most) {
  for (size_t i = 0; i < most && text.ends_with(kReplacementCharacter); ++i)
    text.remove_suffix(kReplacementCharacter.size());
  return text.size();
}

}  // namespace

std::string StreamingDecoder::decode_all() const {
  std::vector<int32_t> all = context_;
  all.insert(all.end(), pending_.begin(), pending_.end());
  return tokenizer_.decode(all, options_);
}

std::string StreamingDecoder::give(const std::string& whole, size_t end) {
  if (end <= given_)
    return {};
  std::string text = whole.substr(given_, end - given_);
  given_ = end;
  return text;
}

std::string StreamingDecoder::push(int32_t id) {
  pending_.push_back(id);
  const std::string whole = decode_all();
  // Bytes that are no character stay back, in any case as many as an incomplete
  // one can have; more only for a while, because byte fallback writes a whole
  // run of byte tokens as U+FFFD until its last character is complete.
  const bool overdue = pending_.size() >= kMaxPending;
  const size_t most = overdue ? 3 : whole.size();
  const size_t end = stable_size(whole, most);
  std::string text = give(whole, end);
  const bool complete = end == whole.size() && !text.empty();
  if (complete || overdue) {
    // Tokens that are no text of their own (skipped specials, a dropped leading
    // space) are no context: the next token would count as the first again.
    const std::string alone = tokenizer_.decode(pending_, options_);
    if (!alone.empty()) {
      context_ = std::exchange(pending_, {});
      given_ = stable_size(alone, most);
    }
  }
  return text;
}

std::string StreamingDecoder::finish() {
  const std::string whole = decode_all();
  std::string text = give(whole, whole.size());
  context_.clear();
  pending_.clear();
  given_ = 0;
  return text;
}

}  // namespace brigade
