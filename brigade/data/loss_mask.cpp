#include "brigade/data/loss_mask.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "brigade/data/byte_reader.h"
#include "brigade/data/dataset_info.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "BRGDMASK";
constexpr uint32_t kMaskVersion = 1;

uint64_t count_bits(std::span<const std::byte> bits) {
  uint64_t count = 0;
  for (const std::byte byte : bits)
    count +=
        static_cast<uint64_t>(std::popcount(std::to_integer<uint8_t>(byte)));
  return count;
}

}  // namespace

std::optional<LossMask> LossMask::open(
    const fs::path& path,
    uint64_t num_tokens) {
  if (!fs::exists(path))
    return std::nullopt;
  auto file = std::make_shared<const MappedFile>(path);
  ByteReader reader(path.string(), file->bytes());
  const auto magic = reader.take(kMagic.size(), "the magic");
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0)
    reader.fail(0, "not '{}': no mask of a dataset", kMagic);
  const auto version = reader.number<uint32_t>("the version");
  if (version != kMaskVersion)
    reader.fail(
        8, "version {}; this program reads version {}", version, kMaskVersion);
  if (reader.number<uint32_t>("a zero") != 0)
    reader.fail(12, "not zero");
  const auto tokens = reader.number<uint64_t>("the number of tokens");
  if (tokens != num_tokens)
    reader.fail(
        16,
        "a mask of {} tokens, but the dataset beside it has {}: prepare them "
        "again together, or remove the mask to learn from all tokens",
        tokens,
        num_tokens);
  const auto counting = reader.number<uint64_t>("how many tokens count");
  const uint64_t begin = reader.offset();
  const auto bits = reader.take(
      num_tokens / 8 + (num_tokens % 8 != 0 ? 1 : 0), "one bit per token");
  if (reader.remaining() != 0)
    reader.fail(reader.offset(), "{} bytes too many", reader.remaining());
  if (const uint64_t set = count_bits(bits); set != counting)
    reader.fail(
        begin, "{} bits are set, but {} tokens should count", set, counting);
  return LossMask(std::move(file), bits, counting);
}

void LossMaskWriter::append(bool counts) {
  if (num_tokens_ % 8 == 0)
    bits_.push_back(0);
  if (counts) {
    bits_.back() = static_cast<uint8_t>(bits_.back() | 1U << num_tokens_ % 8);
    ++counting_tokens_;
  }
  ++num_tokens_;
}

void LossMaskWriter::commit(const fs::path& path) const {
  AtomicFile file(path);
  file.write(kMagic);
  constexpr uint32_t kZero = 0;
  file.write(&kMaskVersion, sizeof(kMaskVersion));
  file.write(&kZero, sizeof(kZero));
  file.write(&num_tokens_, sizeof(num_tokens_));
  file.write(&counting_tokens_, sizeof(counting_tokens_));
  file.write(bits_.data(), bits_.size());
  file.commit();
}

fs::path loss_mask_path(const fs::path& dataset) {
  const std::string extension = dataset.extension().string();
  fs::path prefix = dataset_prefix(dataset);
  if (extension == ".npy" || extension == ".ds")
    prefix.replace_extension();
  return with_suffix(prefix, ".mask");
}

}  // namespace brigade
