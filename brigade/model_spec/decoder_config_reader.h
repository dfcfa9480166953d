// What the parser of config.json reads with: private to brigade/model_spec.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// Far above any model, low enough that no product of two can overflow unseen
// and that a list of all parameters stays small.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;
inline constexpr int64_t kMaxLayers = int64_t{1} << 14;
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;

// One JSON object with the pointer that leads to it. A key that is null counts
// as absent, as in transformers.
class DecoderConfigReader {
 public:
  DecoderConfigReader(
      const nlohmann::json& object,
      std::string pointer,
      std::vector<std::string>& problems)
      : object_(object), pointer_(std::move(pointer)), problems_(problems) {}

  // nullptr when absent or null.
  const nlohmann::json* find(const char* key) const;
  bool holds_null(const char* key) const;
  std::vector<std::string> keys() const;

  // Each is std::nullopt when the key is absent, and after adding a problem
  // when the value is not of the type or in the range.
  std::optional<int64_t> integer(const char* key, int64_t low, int64_t high)
      const;
  enum class Bound { kAbove, kAtLeast };
  std::optional<double> number(const char* key, Bound bound, double low) const;
  std::optional<bool> boolean(const char* key) const;
  std::optional<std::string> text(const char* key) const;
  const nlohmann::json* object(const char* key) const;

  // Absent is a problem too; `low` stands in for it.
  int64_t required_integer(const char* key, int64_t low, int64_t high) const;

  DecoderConfigReader inside(const char* key, const nlohmann::json& nested)
      const;
  void problem(const char* key, const std::string& text) const;

  // Whether no problem was added for these keys: rules that involve several
  // values are checked only then.
  bool is_sound(std::initializer_list<const char*> keys) const;

  static std::optional<int64_t>
  integer_in(const nlohmann::json& value, int64_t low, int64_t high);
  // The value as a message shows it: cut where it would fill the screen.
  static std::string show(const nlohmann::json& value);

 private:
  const nlohmann::json& object_;
  std::string pointer_;
  std::vector<std::string>& problems_;
};

// The keys on rotary embeddings and on the sliding window, which are the ones
// that differ most between versions and architectures
// (decoder_config_attention).
void read_rope(const DecoderConfigReader& reader, DecoderConfig& config);
void read_sliding_window(
    const DecoderConfigReader& reader,
    DecoderConfig& config);

// The keys of a model with experts, to config.experts, and back
// (decoder_config_experts).
void read_experts(const DecoderConfigReader& reader, DecoderConfig& config);
void add_experts(const DecoderConfig& config, nlohmann::json& json);

}  // namespace brigade
