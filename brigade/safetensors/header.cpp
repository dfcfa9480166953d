#include "brigade/safetensors/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/json/scanner.h"

namespace brigade {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxMetadataPairs = size_t{1} << 16;
constexpr size_t kMaxDecodedNameBytes = 4 * MiB;

std::string_view metadata_object(JsonScanner& scanner) {
  scanner.expect('{');
  const size_t start = scanner.position() - 1;
  if (scanner.accept('}'))
    return scanner.text_from(start);
  size_t pairs = 0;
  do {
    if (++pairs > kMaxMetadataPairs) {
      scanner.fail(fmt::format(
          "{} holds more than {} pairs",
          kSafetensorsMetadata,
          kMaxMetadataPairs));
    }
    scanner.string();
    scanner.expect(':');
    scanner.string();
  } while (scanner.another_item('}'));
  return scanner.text_from(start);
}

struct Shape {
  std::string_view text;
  std::optional<uint64_t> numel;  // std::nullopt: above 2^64 - 1
};

Shape shape_array(JsonScanner& scanner) {
  scanner.expect('[');
  const size_t start = scanner.position() - 1;
  Shape shape{.text = {}, .numel = 1};
  if (!scanner.accept(']')) {
    size_t rank = 0;
    do {
      if (++rank > kMaxSafetensorsRank) {
        scanner.fail(
            fmt::format("a shape has more than {} dims", kMaxSafetensorsRank));
      }
      const uint64_t dim = scanner.unsigned_integer();
      if (shape.numel)
        shape.numel = checked_multiply(*shape.numel, dim);
    } while (scanner.another_item(']'));
  }
  shape.text = scanner.text_from(start);
  return shape;
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> file, const std::string& file_name)
      : file_(file), file_name_(file_name) {}

  SafetensorsHeader parse() {
    const std::string_view text = header_text();
    const JsonScannerSource source{
        fmt::format("[safetensors] '{}'", file_name_),
        "the header",
        kLengthBytes};
    JsonScanner scanner(text, source);
    scanner.expect('{');
    if (!scanner.accept('}')) {
      do {
        read_member(scanner);
      } while (scanner.another_item('}'));
    }
    scanner.expect_end();
    refuse_duplicates();
    check_layout();
    return std::move(header_);
  }

 private:
  std::span<const std::byte> file_;
  const std::string& file_name_;
  SafetensorsHeader header_;
  size_t decoded_bytes_ = 0;

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(fmt::format("[safetensors] '{}': {}", file_name_, problem));
  }

  std::string_view header_text() {
    if (file_.size() < kLengthBytes) {
      fail(fmt::format(
          "{} bytes are too few for the header's length at byte 0",
          file_.size()));
    }
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i)
      length |= std::to_integer<uint64_t>(file_[i]) << (8 * i);
    if (length > kMaxSafetensorsHeaderBytes) {
      fail(fmt::format(
          "the header's length at byte 0 is {}, above the limit of {}; is "
          "this a safetensors file?",
          length,
          kMaxSafetensorsHeaderBytes));
    }
    if (kLengthBytes + length > file_.size()) {
      fail(fmt::format(
          "the header's length at byte 0 is {}, but the file has only {} "
          "bytes; is it whole?",
          length,
          file_.size()));
    }
    header_.data_offset_bytes = kLengthBytes + length;
    return {reinterpret_cast<const char*>(file_.data()) + kLengthBytes, length};
  }

  std::string_view name_of(
      JsonScanner& scanner,
      const JsonStringLiteral& literal) {
    if (!literal.has_escapes)
      return literal.raw;
    decoded_bytes_ += literal.raw.size();
    if (decoded_bytes_ > kMaxDecodedNameBytes) {
      scanner.fail(fmt::format(
          "names written with escapes take more than {} bytes",
          kMaxDecodedNameBytes));
    }
    return header_.decoded_names.emplace_back(decode(literal));
  }

  void read_member(JsonScanner& scanner) {
    const auto literal = scanner.string();
    const std::string_view name = name_of(scanner, literal);
    scanner.expect(':');
    if (name == kSafetensorsMetadata) {
      if (!header_.metadata_text.empty())
        scanner.fail(fmt::format("{} is there twice", kSafetensorsMetadata));
      header_.metadata_text =
          scanner.accept_null() ? "{}" : metadata_object(scanner);
      return;
    }
    if (header_.entries.size() == kMaxSafetensorsTensors) {
      scanner.fail(fmt::format("more than {} tensors", kMaxSafetensorsTensors));
    }
    header_.entries.push_back(read_entry(scanner, name));
  }

  SafetensorsEntry read_entry(JsonScanner& scanner, std::string_view name) {
    SafetensorsEntry entry{};
    entry.name = name;
    std::optional<SafetensorsDtype> dtype;
    std::optional<Shape> shape;
    bool has_offsets = false;
    const auto once = [&](bool seen, const char* key) {
      if (seen)
        scanner.fail(fmt::format(
            "tensor '{}': {} is there twice", shown_text(name), key));
    };
    scanner.expect('{');
    do {
      const std::string_view key = scanner.string().raw;
      scanner.expect(':');
      if (key == "dtype") {
        once(dtype.has_value(), "dtype");
        dtype = read_dtype(scanner, name);
      } else if (key == "shape") {
        once(shape.has_value(), "shape");
        shape = shape_array(scanner);
      } else if (key == "data_offsets") {
        once(has_offsets, "data_offsets");
        has_offsets = true;
        scanner.expect('[');
        entry.begin_bytes = scanner.unsigned_integer();
        scanner.expect(',');
        entry.end_bytes = scanner.unsigned_integer();
        scanner.expect(']');
      } else {
        scanner.fail(fmt::format(
            "tensor '{}': unknown key '{}'",
            shown_text(name),
            shown_text(key)));
      }
    } while (scanner.another_item('}'));
    if (!dtype || !shape || !has_offsets) {
      scanner.fail(fmt::format(
          "tensor '{}' lacks {}",
          shown_text(name),
          !dtype   ? "dtype"
          : !shape ? "shape"
                   : "data_offsets"));
    }
    entry.dtype = *dtype;
    entry.shape_text = shape->text;
    check_size(scanner, entry, shape->numel);
    return entry;
  }

  static SafetensorsDtype read_dtype(
      JsonScanner& scanner,
      std::string_view name) {
    const std::string_view text = scanner.string().raw;
    const auto dtype = safetensors_dtype_named(text);
    if (!dtype) {
      scanner.fail(fmt::format(
          "tensor '{}': dtype '{}' is unknown",
          shown_text(name),
          shown_text(text)));
    }
    return *dtype;
  }

  static void check_size(
      JsonScanner& scanner,
      const SafetensorsEntry& entry,
      std::optional<uint64_t> numel) {
    const auto bits =
        numel ? checked_multiply(*numel, item_bits(entry.dtype)) : std::nullopt;
    if (!bits) {
      scanner.fail(fmt::format(
          "tensor '{}': the size of shape {} overflows",
          shown_text(entry.name),
          shown_text(entry.shape_text)));
    }
    const uint64_t bytes = *bits / 8;
    if (*bits % 8 != 0) {
      scanner.fail(fmt::format(
          "tensor '{}': {} {} end within a byte",
          shown_text(entry.name),
          brigade::name_of(entry.dtype),
          shown_text(entry.shape_text)));
    }
    if (entry.end_bytes < entry.begin_bytes ||
        entry.end_bytes - entry.begin_bytes != bytes) {
      scanner.fail(fmt::format(
          "tensor '{}': data_offsets [{}, {}] do not hold the {} bytes of {} "
          "{}",
          shown_text(entry.name),
          entry.begin_bytes,
          entry.end_bytes,
          bytes,
          brigade::name_of(entry.dtype),
          shown_text(entry.shape_text)));
    }
  }

  void refuse_duplicates() const {
    const auto& entries = header_.entries;
    std::vector<uint32_t> order(entries.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return entries[a].name < entries[b].name;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const SafetensorsEntry& a = entries[order[i - 1]];
      const SafetensorsEntry& b = entries[order[i]];
      if (a.name == b.name) {
        fail(fmt::format(
            "tensor '{}' is there twice, at bytes {} and {} of the data",
            shown_text(a.name),
            std::min(a.begin_bytes, b.begin_bytes),
            std::max(a.begin_bytes, b.begin_bytes)));
      }
    }
  }

  // Sorted by begin, each tensor begins where the one before it ends.
  void check_layout() {
    auto& entries = header_.entries;
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin_bytes, a.end_bytes) <
             std::pair(b.begin_bytes, b.end_bytes);
    });
    uint64_t end = 0;
    for (const SafetensorsEntry& entry : entries) {
      if (entry.begin_bytes != end) {
        fail(fmt::format(
            "tensor '{}' begins at byte {} of the data, but the one before "
            "it ends at {}: {} (at byte {})",
            shown_text(entry.name),
            entry.begin_bytes,
            end,
            entry.begin_bytes > end ? "a hole" : "an overlap",
            header_.data_offset_bytes + std::min(end, entry.begin_bytes)));
      }
      end = entry.end_bytes;
    }
    const uint64_t data_bytes = file_.size() - header_.data_offset_bytes;
    if (end != data_bytes) {
      fail(fmt::format(
          "the tensors end at byte {} of the data, but the file holds {} "
          "bytes of data from byte {} on; {}",
          end,
          data_bytes,
          header_.data_offset_bytes,
          end > data_bytes ? "the file is cut short"
                           : "there are bytes after the last tensor"));
    }
  }
};

}  // namespace

SafetensorsHeader parse_safetensors_header(
    std::span<const std::byte> file,
    const std::string& file_name) {
  return HeaderParser(file, file_name).parse();
}

std::vector<uint64_t> parse_safetensors_shape(std::string_view shape_text) {
  const JsonScannerSource source;  // checked already
  JsonScanner scanner(shape_text, source);
  std::vector<uint64_t> shape;
  scanner.expect('[');
  if (scanner.accept(']'))
    return shape;
  do {
    shape.push_back(scanner.unsigned_integer());
  } while (scanner.another_item(']'));
  return shape;
}

std::vector<std::pair<std::string, std::string>> parse_safetensors_metadata(
    std::string_view metadata_text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  if (metadata_text.empty())
    return pairs;
  const JsonScannerSource source;  // checked already
  JsonScanner scanner(metadata_text, source);
  scanner.expect('{');
  if (scanner.accept('}'))
    return pairs;
  do {
    std::string key = decode(scanner.string());
    scanner.expect(':');
    pairs.emplace_back(std::move(key), decode(scanner.string()));
  } while (scanner.another_item('}'));
  return pairs;
}

}  // namespace brigade
