// A tokenizer.json of any content either loads or is a DataError. A loaded one
// encodes and decodes any text, or throws a DataError (a regular expression
// without end, a missing unknown token).
//
// The input is the JSON; a text to encode may follow after a zero byte.
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/streaming_decoder.h"
#include "brigade/tokenizer/tokenizer_json.h"

namespace {

constexpr std::string_view kText =
    "The  quick\tbrown fox,\r\n\n 123 it's <s>\u2581caf\u00E9 e\u0301 "
    "\u65E5\u672C\U0001F600 \u0130\u00BD<0x0A> "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "\u0000\u200D";

void exercise(const brigade::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(
      text, {.special_tokens = brigade::SpecialTokens::kTemplate});
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size())
      __builtin_trap();
  }
  const std::string decoded = tokenizer.decode(ids);
  if (brigade::valid_utf8_prefix(decoded) != decoded.size())
    __builtin_trap();
  brigade::StreamingDecoder stream(tokenizer);
  std::string streamed;
  for (const int32_t id : ids)
    streamed += stream.push(id);
  streamed += stream.finish();
  if (brigade::valid_utf8_prefix(streamed) != streamed.size())
    __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  try {
    const brigade::HuggingFaceTokenizer tokenizer(
        input.substr(0, zero), "fuzz", {});
    std::vector<int32_t> ids(32);
    std::iota(ids.begin(), ids.end(), 0);
    tokenizer.decode(ids, {.skip_special_tokens = true});
    exercise(tokenizer, kText);
    if (zero != std::string_view::npos)
      exercise(tokenizer, input.substr(zero + 1));
  } catch (const brigade::DataError&) {
  }
  return 0;
}
