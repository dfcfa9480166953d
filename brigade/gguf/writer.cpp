#include "brigade/gguf/writer.h"

#include <array>
#include <type_traits>

#include "brigade/base/check.h"

namespace brigade {
namespace {

uint64_t padded(uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

// The bytes before the data.
class Header {
 public:
  template <typename Number>
  void number(Number value) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(std::string_view text) {
    number<uint64_t>(text.size());
    bytes_ += text;
  }
  void entry(const GgufEntry& entry) {
    string(entry.key);
    std::visit([&](const auto& value) { this->value(value); }, entry.value);
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;

  static GgufValueType type_of(bool) { return GgufValueType::kBool; }
  static GgufValueType type_of(uint32_t) { return GgufValueType::kUint32; }
  static GgufValueType type_of(int32_t) { return GgufValueType::kInt32; }
  static GgufValueType type_of(uint64_t) { return GgufValueType::kUint64; }
  static GgufValueType type_of(int64_t) { return GgufValueType::kInt64; }
  static GgufValueType type_of(float) { return GgufValueType::kFloat32; }
  static GgufValueType type_of(const std::string&) {
    return GgufValueType::kString;
  }

  void type(GgufValueType type) { number(static_cast<uint32_t>(type)); }

  template <typename Value>
  void untyped(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value>)
      number(value);
    else
      string(value);
  }

  template <typename Value>
  void value(const Value& value) {
    type(type_of(value));
    untyped(value);
  }

  template <typename Value>
  void value(const std::vector<Value>& values) {
    type(GgufValueType::kArray);
    type(type_of(Value()));
    number<uint64_t>(values.size());
    for (const Value& value : values)
      untyped(value);
  }
};

uint64_t checked_data_bytes(const GgufTensorSpec& spec) {
  const auto bytes = data_bytes(spec);
  BRIGADE_ASSERT(bytes, "{} has no size as {}", spec.name, name_of(spec.type));
  return *bytes;
}

}  // namespace

GgufWriter::GgufWriter(
    const std::filesystem::path& path,
    const std::vector<GgufEntry>& entries,
    std::vector<GgufTensorSpec> tensors)
    : tensors_(std::move(tensors)), file_(path) {
  Header header;
  header.bytes() += kGgufMagic;
  header.number(kGgufVersion);
  header.number<uint64_t>(tensors_.size());
  header.number<uint64_t>(entries.size());
  for (const GgufEntry& entry : entries)
    header.entry(entry);
  uint64_t offset_bytes = 0;
  for (const GgufTensorSpec& tensor : tensors_) {
    header.string(tensor.name);
    header.number(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      header.number<uint64_t>(*size);
    header.number(static_cast<uint32_t>(tensor.type));
    header.number(offset_bytes);
    offset_bytes += padded(checked_data_bytes(tensor));
  }
  file_.write(header.bytes());
  pad();
}

void GgufWriter::pad() {
  static constexpr std::array<char, kGgufAlignment> kZeros{};
  const uint64_t written = file_.written_bytes();
  file_.write(kZeros.data(), padded(written) - written);
}

void GgufWriter::write_next(std::span<const std::byte> data) {
  BRIGADE_ASSERT(next_ < tensors_.size(), "all tensors are written");
  const GgufTensorSpec& tensor = tensors_[next_++];
  BRIGADE_ASSERT(
      data.size() == checked_data_bytes(tensor),
      "{} has {} bytes, given are {}",
      tensor.name,
      checked_data_bytes(tensor),
      data.size());
  file_.write(data.data(), data.size());
  pad();
}

void GgufWriter::commit() {
  BRIGADE_ASSERT(
      next_ == tensors_.size(),
      "{} of {} tensors are written",
      next_,
      tensors_.size());
  file_.commit();
}

}  // namespace brigade
