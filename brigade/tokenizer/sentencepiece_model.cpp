#include "brigade/tokenizer/sentencepiece_model.h"

#include <fmt/format.h>

#include <cstring>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// The fields of one protobuf message, one after the other.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  // False at the end. Afterwards number() says which field, and one of the
  // others its value.
  bool next() {
    if (at_ == bytes_.size())
      return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    text_ = {};
    value_ = 0;
    switch (tag & 7) {
      case 0:
        value_ = varint();
        break;
      case 1:
        text_ = take(8);
        break;
      case 2:
        text_ = take(varint());
        break;
      case 5:
        text_ = take(4);
        break;
      default:
        fail();
    }
    return true;
  }

  uint64_t number() const { return number_; }
  uint64_t value() const { return value_; }
  bool flag() const { return value_ != 0; }
  std::string_view text() const { return text_; }
  float real() const {
    float number = 0;
    if (text_.size() != sizeof(number))
      fail();
    std::memcpy(&number, text_.data(), sizeof(number));
    return number;
  }

 private:
  std::string_view bytes_;
  const std::string& file_;
  size_t at_ = 0;
  uint64_t number_ = 0;
  uint64_t value_ = 0;
  std::string_view text_;

  [[noreturn]] void fail() const {
    throw DataError(fmt::format(
        "[tokenizer] {}: not a usable SentencePiece model: its bytes are those "
        "of something else",
        file_));
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size())
        fail();
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80)
        return value;
    }
    fail();
  }

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_)
      fail();
    const std::string_view text = bytes_.substr(at_, size);
    at_ += size;
    return text;
  }
};

SentencePieceModel::Piece read_piece(Fields fields) {
  SentencePieceModel::Piece piece;
  while (fields.next()) {
    if (fields.number() == 1)
      piece.text = fields.text();
    else if (fields.number() == 2)
      piece.score = fields.real();
    else if (fields.number() == 3)
      piece.type = static_cast<SentencePieceModel::PieceType>(fields.value());
  }
  return piece;
}

void read_trainer(Fields fields, SentencePieceModel& model) {
  while (fields.next()) {
    if (fields.number() == 3)
      model.algorithm =
          static_cast<SentencePieceModel::Algorithm>(fields.value());
    else if (fields.number() == 24)
      model.white_space_is_suffix = fields.flag();
    else if (fields.number() == 35)
      model.byte_fallback = fields.flag();
    else if (fields.number() == 46)
      model.bos_piece = fields.text();
    else if (fields.number() == 47)
      model.eos_piece = fields.text();
  }
}

void read_normalizer(Fields fields, SentencePieceModel& model) {
  while (fields.next()) {
    if (fields.number() == 2)
      model.charsmap = fields.text();
    else if (fields.number() == 3)
      model.adds_dummy_prefix = fields.flag();
    else if (fields.number() == 4)
      model.removes_extra_white_space = fields.flag();
    else if (fields.number() == 5)
      model.escapes_white_space = fields.flag();
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(
    std::string_view bytes,
    const std::string& file) {
  SentencePieceModel model;
  Fields fields(bytes, file);
  while (fields.next()) {
    const Fields inner(fields.text(), file);
    if (fields.number() == 1)
      model.pieces.push_back(read_piece(inner));
    else if (fields.number() == 2)
      read_trainer(inner, model);
    else if (fields.number() == 3)
      read_normalizer(inner, model);
    else if (fields.number() == 5)
      model.has_denormalizer = !fields.text().empty();
  }
  return model;
}

}  // namespace brigade
