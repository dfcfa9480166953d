// llm.c's .bin files: a header of 256 integers, then tokens.
#include "brigade/data/byte_reader.h"
#include "brigade/data/token_format.h"

namespace brigade {
namespace {

constexpr uint64_t kLlmcHeaderBytes = 256 * sizeof(int32_t);
constexpr int32_t kLlmcMagicU16 = 20240520;  // GPT-2's tokens, version 1
constexpr int32_t kLlmcMagicU32 = 20240801;  // Llama 3's tokens, version 7

}  // namespace

bool has_llm_c_magic(std::span<const std::byte> tokens) {
  if (tokens.size() < sizeof(int32_t))
    return false;
  const auto magic = load_at<int32_t>(tokens, 0);
  return magic == kLlmcMagicU16 || magic == kLlmcMagicU32;
}

TokenFileLayout parse_llm_c(const NamedBytes& tokens) {
  ByteReader reader(tokens.name, tokens.bytes);
  const auto header = reader.take(kLlmcHeaderBytes, "llm.c's header");
  const auto magic = load_at<int32_t>(header, 0);
  if (!has_llm_c_magic(header)) {
    reader.fail(
        0,
        "magic {} is not llm.c's ({} or {})",
        magic,
        kLlmcMagicU16,
        kLlmcMagicU32);
  }
  const TokenType type =
      magic == kLlmcMagicU16 ? TokenType::kU16 : TokenType::kU32;
  const int32_t expected_version = magic == kLlmcMagicU16 ? 1 : 7;
  const auto version = load_at<int32_t>(header, 1);
  if (version != expected_version) {
    reader.fail(
        4,
        "version {}; files with magic {} have version {}",
        version,
        magic,
        expected_version);
  }
  const auto count = load_at<int32_t>(header, 2);
  if (count < 0)
    reader.fail(8, "a token count of {}", count);
  const uint64_t num_tokens = static_cast<uint64_t>(count);
  if (reader.remaining() != num_tokens * token_bytes(type)) {
    reader.fail(
        8,
        "{} {} tokens take {} bytes after the header, but {} are there",
        num_tokens,
        to_string(type),
        num_tokens * token_bytes(type),
        reader.remaining());
  }
  return {type, kLlmcHeaderBytes, num_tokens, DocumentIndex(num_tokens)};
}

}  // namespace brigade
