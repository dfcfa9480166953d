#include "brigade/safetensors/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/checked_math.h"
#include "brigade/safetensors/header.h"

namespace brigade {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "the format is little-endian and so are the tensors in memory");

// Header and data start at multiples of this, so that readers may map them.
constexpr size_t kAlignmentBytes = 8;

std::vector<TensorSpec> in_file_order(std::vector<TensorSpec> specs) {
  std::sort(specs.begin(), specs.end(), [](const auto& a, const auto& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::unordered_set<std::string_view> names = {kSafetensorsMetadata};
  for (const TensorSpec& spec : specs) {
    const bool is_new = names.insert(spec.name).second;
    BRIGADE_ASSERT(is_new, "tensor name '{}' is taken", spec.name);
  }
  return specs;
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump();
}

std::string header_text(
    const std::vector<TensorSpec>& specs,
    const SafetensorsMetadata& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    members.push_back(fmt::format(
        "{}:{}",
        json_string(kSafetensorsMetadata),
        nlohmann::json(metadata).dump()));
  }
  uint64_t begin = 0;
  for (const TensorSpec& spec : specs) {
    const auto end = checked_add(begin, size_bytes(spec));
    BRIGADE_ASSERT(end.has_value(), "sizes overflow at '{}'", spec.name);
    members.push_back(fmt::format(
        R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
        json_string(spec.name),
        name_of(spec.dtype),
        fmt::join(spec.shape, ","),
        begin,
        *end));
    begin = *end;
  }
  std::string text = fmt::format("{{{}}}", fmt::join(members, ","));
  text.append(
      (kAlignmentBytes - text.size() % kAlignmentBytes) % kAlignmentBytes, ' ');
  return text;
}

}  // namespace

uint64_t size_bytes(const TensorSpec& spec) {
  const auto numel = checked_product(spec.shape);
  const auto bytes =
      numel ? checked_multiply(*numel, item_bytes(spec.dtype)) : std::nullopt;
  BRIGADE_ASSERT(bytes.has_value(), "the size of '{}' overflows", spec.name);
  return *bytes;
}

SafetensorsWriter::SafetensorsWriter(
    const std::filesystem::path& path,
    std::vector<TensorSpec> specs,
    const SafetensorsMetadata& metadata,
    Digest digest)
    : specs_(in_file_order(std::move(specs))), file_(path, digest) {
  const std::string header = header_text(specs_, metadata);
  const uint64_t length = header.size();
  file_.write(&length, sizeof length);
  file_.write(header);
}

void SafetensorsWriter::write_next(std::span<const std::byte> data) {
  BRIGADE_ASSERT(next_ < specs_.size(), "all {} tensors written", next_);
  const TensorSpec& spec = specs_[next_++];
  BRIGADE_ASSERT(
      data.size() == size_bytes(spec),
      "'{}' has {} bytes, got {}",
      spec.name,
      size_bytes(spec),
      data.size());
  file_.write(data.data(), data.size());
}

void SafetensorsWriter::commit() {
  BRIGADE_ASSERT(
      next_ == specs_.size(), "{} of {} tensors", next_, specs_.size());
  file_.commit();
}

}  // namespace brigade
