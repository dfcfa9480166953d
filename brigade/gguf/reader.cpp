#include "brigade/gguf/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, const std::string& file_name)
      : file_(file), file_name_(file_name) {}

  GgufContents parse() {
    read_start();
    GgufContents contents;
    for (uint64_t i = 0; i < entry_count_; ++i)
      read_entry(contents);
    const auto alignment = contents.entries.find(kGgufAlignmentKey);
    if (alignment != contents.entries.end()) {
      const auto* bytes = std::get_if<uint32_t>(&alignment->second);
      if (bytes == nullptr || !std::has_single_bit(*bytes))
        fail(at_, fmt::format("{} is no power of two", kGgufAlignmentKey));
      alignment_ = *bytes;
    }
    for (uint64_t i = 0; i < tensor_count_; ++i)
      read_tensor(contents);
    place_data(contents);
    return contents;
  }

 private:
  // The least bytes that an entry and a tensor's description take.
  static constexpr uint64_t kLeastEntryBytes = 8 + 1 + 4 + 1;
  static constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

  std::span<const std::byte> file_;
  const std::string& file_name_;
  uint64_t at_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t entry_count_ = 0;
  uint64_t alignment_ = kGgufAlignment;
  std::set<std::string> names_;
  std::vector<uint64_t> offsets_;  // as the file says, of each tensor

  [[noreturn]] void fail(uint64_t offset, const std::string& problem) const {
    throw DataError(
        fmt::format("[gguf] '{}' at byte {}: {}", file_name_, offset, problem));
  }

  uint64_t left_bytes() const { return file_.size() - at_; }

  void require(uint64_t bytes, const char* what) const {
    if (bytes > left_bytes()) {
      fail(
          at_,
          fmt::format(
              "{} of {} bytes goes beyond the end of the file, which has {}; "
              "it is truncated or no GGUF",
              what,
              bytes,
              file_.size()));
    }
  }

  // Whether that many things of `least_bytes` can follow.
  void require_count(uint64_t count, uint64_t least_bytes, const char* what) {
    if (count > left_bytes() / least_bytes) {
      fail(
          at_,
          fmt::format(
              "{} {} cannot be in the {} bytes that are left; the file is "
              "truncated or no GGUF",
              count,
              what,
              left_bytes()));
    }
  }

  template <typename Number>
  Number number(const char* what) {
    require(sizeof(Number), what);
    Number value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  std::string string(const char* what) {
    const auto length = number<uint64_t>(what);
    require(length, what);
    std::string text(reinterpret_cast<const char*>(file_.data()) + at_, length);
    at_ += length;
    return text;
  }

  void read_start() {
    require(kGgufMagic.size(), "the first word");
    if (std::memcmp(file_.data(), kGgufMagic.data(), kGgufMagic.size()) != 0)
      fail(0, "the file does not begin with \"GGUF\"");
    at_ = kGgufMagic.size();
    const auto version = number<uint32_t>("the version");
    if (version == kGgufVersion << 24)
      fail(4, "the file is big-endian; only little-endian ones are read");
    if (version != 2 && version != kGgufVersion)
      fail(4, fmt::format("version {}; only 2 and 3 are read", version));
    tensor_count_ = number<uint64_t>("the number of tensors");
    entry_count_ = number<uint64_t>("the number of entries");
    require_count(tensor_count_, kLeastTensorBytes, "tensors");
    require_count(entry_count_, kLeastEntryBytes, "entries");
  }

  void read_entry(GgufContents& contents) {
    const uint64_t begin = at_;
    std::string key = string("a key");
    const auto type = number<uint32_t>("the type of a value");
    GgufValue value = read_value(type, key);
    if (!contents.entries.emplace(std::move(key), std::move(value)).second)
      fail(begin, "the key comes a second time");
  }

  GgufValue read_value(uint32_t type, const std::string& key) {
    switch (static_cast<GgufValueType>(type)) {
      case GgufValueType::kUint8:
        return uint32_t{number<uint8_t>("a value")};
      case GgufValueType::kInt8:
        return int32_t{number<int8_t>("a value")};
      case GgufValueType::kUint16:
        return uint32_t{number<uint16_t>("a value")};
      case GgufValueType::kInt16:
        return int32_t{number<int16_t>("a value")};
      case GgufValueType::kUint32:
        return number<uint32_t>("a value");
      case GgufValueType::kInt32:
        return number<int32_t>("a value");
      case GgufValueType::kFloat32:
        return number<float>("a value");
      case GgufValueType::kBool:
        return number<uint8_t>("a value") != 0;
      case GgufValueType::kString:
        return string("a text");
      case GgufValueType::kArray:
        return read_array(key);
      case GgufValueType::kUint64:
        return number<uint64_t>("a value");
      case GgufValueType::kInt64:
        return number<int64_t>("a value");
      case GgufValueType::kFloat64:
        return static_cast<float>(number<double>("a value"));
    }
    fail(at_ - 4, fmt::format("'{}' has the unknown type {}", key, type));
  }

  template <typename Stored, typename Kept>
  std::vector<Kept> numbers(uint64_t count) {
    require_count(count, sizeof(Stored), "values");
    std::vector<Kept> values(count);
    for (Kept& value : values)
      value = static_cast<Kept>(number<Stored>("a list"));
    return values;
  }

  // A list that is not kept.
  template <typename Stored>
  std::vector<int32_t> skip(uint64_t count) {
    require_count(count, sizeof(Stored), "values");
    at_ += count * sizeof(Stored);
    return {};
  }

  GgufValue read_array(const std::string& key) {
    const auto type = number<uint32_t>("the type of a list");
    const auto count = number<uint64_t>("the length of a list");
    switch (static_cast<GgufValueType>(type)) {
      case GgufValueType::kUint8:
      case GgufValueType::kBool:
        return numbers<uint8_t, int32_t>(count);
      case GgufValueType::kInt8:
        return numbers<int8_t, int32_t>(count);
      case GgufValueType::kUint16:
        return numbers<uint16_t, int32_t>(count);
      case GgufValueType::kInt16:
        return numbers<int16_t, int32_t>(count);
      case GgufValueType::kUint32:
        return numbers<uint32_t, int32_t>(count);
      case GgufValueType::kInt32:
        return numbers<int32_t, int32_t>(count);
      case GgufValueType::kFloat32:
        return numbers<float, float>(count);
      case GgufValueType::kUint64:
      case GgufValueType::kInt64:
      case GgufValueType::kFloat64:
        return skip<uint64_t>(count);
      case GgufValueType::kString: {
        require_count(count, sizeof(uint64_t), "texts");
        std::vector<std::string> texts(count);
        for (std::string& text : texts)
          text = string("a text of a list");
        return texts;
      }
      case GgufValueType::kArray:
        fail(at_, fmt::format("'{}' is a list of lists", key));
    }
    fail(at_, fmt::format("'{}' is a list of the unknown type {}", key, type));
  }

  void read_tensor(GgufContents& contents) {
    const uint64_t begin = at_;
    GgufTensor tensor;
    tensor.name = string("a tensor's name");
    if (!names_.insert(tensor.name).second)
      fail(begin, fmt::format("tensor '{}' comes twice", tensor.name));
    const auto dims = number<uint32_t>("a tensor's dims");
    if (dims == 0 || dims > kGgufMaxDims) {
      fail(
          at_ - 4,
          fmt::format(
              "tensor '{}' has {} dims, expected 1 to {}",
              tensor.name,
              dims,
              kGgufMaxDims));
    }
    for (uint32_t i = 0; i < dims; ++i)
      tensor.shape.push_back(number<uint64_t>("a tensor's size"));
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    const auto number_of_type = number<uint32_t>("a tensor's type");
    const auto type = gguf_type(number_of_type);
    if (!type) {
      fail(
          at_ - 4,
          fmt::format(
              "tensor '{}' is {}; only f32, f16, bf16 and q8_0 are read",
              tensor.name,
              ggml_type_name(number_of_type)));
    }
    tensor.type = *type;
    offsets_.push_back(number<uint64_t>("a tensor's offset"));
    contents.tensors.push_back(std::move(tensor));
  }

  std::optional<uint64_t> padded(uint64_t bytes) const {
    const auto sum = checked_add(bytes, alignment_ - 1);
    return sum ? std::optional(*sum / alignment_ * alignment_) : std::nullopt;
  }

  // The data of each tensor follows that of the one before.
  void place_data(GgufContents& contents) {
    auto begin = padded(at_);
    const uint64_t data_begin = begin.value_or(0);
    for (size_t i = 0; i < contents.tensors.size(); ++i) {
      GgufTensor& tensor = contents.tensors[i];
      const auto bytes = data_bytes(tensor);
      if (!bytes) {
        fail(
            at_,
            fmt::format(
                "tensor '{}' has rows of {} values, which {} cannot hold",
                tensor.name,
                tensor.shape.back(),
                name_of(tensor.type)));
      }
      const auto end = begin ? checked_add(*begin, *bytes) : std::nullopt;
      if (!end || *end > file_.size()) {
        fail(
            begin.value_or(at_),
            fmt::format(
                "the data of tensor '{}', {} bytes, goes beyond the end of the "
                "file, which has {}; it is truncated",
                tensor.name,
                *bytes,
                file_.size()));
      }
      if (offsets_[i] != *begin - data_begin) {
        fail(
            *begin,
            fmt::format(
                "tensor '{}' is said to be at {}, expected {}",
                tensor.name,
                offsets_[i],
                *begin - data_begin));
      }
      tensor.data = file_.subspan(*begin, *bytes);
      begin = padded(*end);
    }
  }
};

}  // namespace

GgufContents parse_gguf(
    std::span<const std::byte> file,
    const std::string& file_name) {
  return GgufParser(file, file_name).parse();
}

GgufFile::GgufFile(const std::filesystem::path& path)
    : file_(path), contents_(parse_gguf(file_.bytes(), path.string())) {
  for (size_t i = 0; i < contents_.tensors.size(); ++i)
    by_name_[contents_.tensors[i].name] = i;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &contents_.tensors[found->second];
}

const GgufValue* GgufFile::find_any(std::string_view key) const {
  const auto found = contents_.entries.find(key);
  return found == contents_.entries.end() ? nullptr : &found->second;
}

void GgufFile::refuse_type(std::string_view key) const {
  throw DataError(fmt::format(
      "[gguf] '{}': the value of '{}' is of another type than it should be",
      path().string(),
      key));
}

void GgufFile::refuse_absence(std::string_view key) const {
  throw DataError(fmt::format("[gguf] '{}' has no '{}'", path().string(), key));
}

}  // namespace brigade
