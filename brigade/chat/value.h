// A value of a template, as Python has it: what Jinja computes with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "brigade/chat/text.h"

namespace brigade::jinja {

// What a template does wrong; the caller that evaluates it adds where.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Value;

// Entries are in the order of insertion, as in Python. Keys are strings.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;
  bool is_namespace = false;           // whose attributes {% set %} changes
  int32_t message = Mark::kNoMessage;  // the number of the one that it is

  const Value* find(std::string_view key) const;
  Value& operator[](const std::string& key);
};

using List = std::vector<Value>;

// The arguments of a call, of a filter or of a test.
struct CallArguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // The i-th, or the one of this name; null: not given.
  const Value* find(size_t index, std::string_view name) const;
};

using Function = std::function<Value(const CallArguments&)>;

struct Undefined {
  std::string name;  // what was looked for
};
struct None {};
// A whole number beyond 64 bits, as it is written: printed and compared for
// equality, but not computed with.
struct LargeInteger {
  std::string digits;
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None none) : data_(none) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(LargeInteger value) : data_(std::move(value)) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string text) : Value(Text(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list) : data_(std::make_shared<const List>(std::move(list))) {}
  Value(std::shared_ptr<Dict> dict) : data_(std::move(dict)) {}
  Value(Function function)
      : data_(std::make_shared<const Function>(std::move(function))) {}

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_integer() const { return holds<int64_t>(); }
  bool is_float() const { return holds<double>(); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_large_integer() const { return holds<LargeInteger>(); }
  bool is_text() const { return holds<TextPointer>(); }
  bool is_list() const { return holds<ListPointer>(); }
  bool is_dict() const { return holds<std::shared_ptr<Dict>>(); }
  bool is_function() const { return holds<FunctionPointer>(); }

  // Preconditions: it is one.
  const Text& text() const { return *std::get<TextPointer>(data_); }
  const List& list() const { return *std::get<ListPointer>(data_); }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<FunctionPointer>(data_); }
  const std::string& digits() const {
    return std::get<LargeInteger>(data_).digits;
  }
  const std::string& undefined_name() const {
    return std::get<Undefined>(data_).name;
  }
  int64_t integer() const;  // of a bool: 0 or 1
  double number() const;

  bool is_true() const;      // as `if` takes it
  Text printed() const;      // str()
  Text shown() const;        // repr()
  const char* type() const;  // Python's name of its type

  bool operator==(const Value& other) const;

 private:
  using TextPointer = std::shared_ptr<const Text>;
  using ListPointer = std::shared_ptr<const List>;
  using FunctionPointer = std::shared_ptr<const Function>;
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  std::variant<
      Undefined,
      None,
      bool,
      int64_t,
      double,
      LargeInteger,
      TextPointer,
      ListPointer,
      std::shared_ptr<Dict>,
      FunctionPointer>
      data_;
};

// Negative, 0 or positive for two numbers or two strings; std::nullopt: they
// cannot be compared.
std::optional<int> compare(const Value& left, const Value& right);

// As Python's json.dumps(ensure_ascii=False) writes it. `indent`: spaces per
// level; absent: one line.
struct JsonStyle {
  std::optional<int64_t> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sorts_keys = false;
};
// Throws Fault for what JSON cannot hold.
Text to_json(const Value& value, const JsonStyle& style = {});

// `message`: all strings of it are marked with it.
Value from_json(
    const nlohmann::ordered_json& json,
    std::optional<int32_t> message = std::nullopt);

// As Python prints a float: "0.1", "1.0", "1e+16".
std::string float_text(double value);

}  // namespace brigade::jinja
