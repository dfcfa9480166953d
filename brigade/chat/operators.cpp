#include "brigade/chat/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "brigade/chat/builtins.h"

namespace brigade::jinja {
namespace {

constexpr int64_t kMostRepeated = 1 << 24;  // bytes or items

[[noreturn]] void
refuse(const std::string& op, const Value& left, const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is_undefined())
      throw Fault(fmt::format("'{}' is undefined", side->undefined_name()));
  }
  throw Fault(fmt::format(
      "'{}' does not take values of types {} and {}",
      op,
      left.type(),
      right.type()));
}

int64_t floor_divided(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return quotient - (left % right != 0 && (left < 0) != (right < 0) ? 1 : 0);
}

int64_t whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result))
      throw Fault("a number is too large");
    if (result == 0 || result == 1)
      return result;
  }
  return result;
}

Value whole(const std::string& op, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "+")
    overflows = __builtin_add_overflow(left, right, &result);
  else if (op == "-")
    overflows = __builtin_sub_overflow(left, right, &result);
  else if (op == "*")
    overflows = __builtin_mul_overflow(left, right, &result);
  else if (right == 0)
    throw Fault("a division by zero");
  else if (right == -1)  // the lowest number / -1 is too large
    overflows = op == "//" && __builtin_sub_overflow(0, left, &result);
  else if (op == "//")
    result = floor_divided(left, right);
  else
    result = left - floor_divided(left, right) * right;
  if (overflows)
    throw Fault("a number is too large");
  return result;
}

Value arithmetic(const std::string& op, const Value& left, const Value& right) {
  const bool is_whole = !left.is_float() && !right.is_float();
  if (op == "**") {
    if (is_whole && right.integer() >= 0 && right.integer() < 64)
      return whole_power(left.integer(), right.integer());
    return std::pow(left.number(), right.number());
  }
  if (is_whole && op != "/")
    return whole(op, left.integer(), right.integer());
  const double a = left.number();
  const double b = right.number();
  if (op == "+")
    return a + b;
  if (op == "-")
    return a - b;
  if (op == "*")
    return a * b;
  if (b == 0)
    throw Fault("a division by zero");
  if (op == "/")
    return a / b;
  const double quotient = std::floor(a / b);
  return op == "//" ? quotient : a - quotient * b;
}

Value repeated(const Value& value, int64_t times) {
  const auto size = static_cast<int64_t>(
      value.is_text() ? value.text().size() : value.list().size());
  if (times > 0 && size > kMostRepeated / times)
    throw Fault("a value is repeated too often");
  Text text;
  List list;
  for (int64_t i = 0; i < times; ++i) {
    if (value.is_text())
      text.append(value.text());
    else
      list.insert(list.end(), value.list().begin(), value.list().end());
  }
  return value.is_text() ? Value(text) : Value(list);
}

}  // namespace

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "~") {
    Text joined = left.printed();
    joined.append(right.printed());
    return joined;
  }
  if (left.is_number() && right.is_number())
    return arithmetic(op, left, right);
  const auto is_series = [](const Value& value) {
    return value.is_text() || value.is_list();
  };
  if (op == "*" && is_series(left) && right.is_integer())
    return repeated(left, right.integer());
  if (op == "*" && left.is_integer() && is_series(right))
    return repeated(right, left.integer());
  if (op == "+" && left.is_text() && right.is_text()) {
    Text joined = left.text();
    joined.append(right.text());
    return joined;
  }
  if (op == "+" && left.is_list() && right.is_list()) {
    List joined = left.list();
    joined.insert(joined.end(), right.list().begin(), right.list().end());
    return joined;
  }
  if (op == "%" && left.is_text())
    throw Fault("'%' on a string is not supported");
  refuse(op, left, right);
}

bool compares(const std::string& op, const Value& left, const Value& right) {
  if (op == "==")
    return left == right;
  if (op == "!=")
    return !(left == right);
  if (op == "in")
    return contains(right, left);
  if (op == "not in")
    return !contains(right, left);
  const auto order = compare(left, right);
  if (!order)
    refuse(op, left, right);
  if (op == "<")
    return *order < 0;
  if (op == "<=")
    return *order <= 0;
  return op == ">" ? *order > 0 : *order >= 0;
}

Value negative(const Value& value) {
  if (value.is_float())
    return -value.number();
  if (!value.is_number())
    throw Fault(
        fmt::format("'-' does not take a value of type {}", value.type()));
  return whole("-", 0, value.integer());
}

Value slice(
    const Value& operand,
    const Value& begin,
    const Value& end,
    const Value& step) {
  if (operand.is_undefined())
    throw Fault(fmt::format("'{}' is undefined", operand.undefined_name()));
  if (!operand.is_text() && !operand.is_list())
    throw Fault(fmt::format(
        "a slice of a value of type {} cannot be taken", operand.type()));
  const auto number = [](const Value& value, int64_t when_none) {
    if (value.is_none())
      return when_none;
    if (!value.is_integer())
      throw Fault("the parts of a slice are whole numbers");
    return value.integer();
  };
  const std::vector<size_t> offsets =
      operand.is_text() ? code_point_offsets(operand.text().bytes())
                        : std::vector<size_t>();
  const auto size = static_cast<int64_t>(
      operand.is_text() ? offsets.size() - 1 : operand.list().size());
  const int64_t stride = number(step, 1);
  if (stride == 0)
    throw Fault("the step of a slice is not 0");
  // As Python's slice.indices().
  const int64_t lowest = stride > 0 ? 0 : -1;
  const int64_t highest = stride > 0 ? size : size - 1;
  const auto clamped = [&](const Value& value, int64_t when_none) {
    if (value.is_none())
      return when_none;
    const int64_t at = number(value, 0);
    return std::clamp(at < 0 ? at + size : at, lowest, highest);
  };
  const int64_t first = clamped(begin, stride > 0 ? lowest : highest);
  const int64_t last = clamped(end, stride > 0 ? highest : lowest);
  Text text;
  List list;
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    const auto at = static_cast<size_t>(i);
    if (operand.is_text())
      text.append(operand.text().part(offsets[at], offsets[at + 1]));
    else
      list.push_back(operand.list()[at]);
    if (stride > size || stride < -size)
      break;  // no second one, and no overflow
  }
  return operand.is_text() ? Value(text) : Value(list);
}

}  // namespace brigade::jinja
