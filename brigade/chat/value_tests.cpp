// Jinja's tests: what stands behind `is`.
#include <fmt/format.h>

#include <map>

#include "brigade/chat/builtins.h"

namespace brigade::jinja {
namespace {

using ValueTest = bool (*)(const Value&, const CallArguments&);

const Value& other_operand(const CallArguments& arguments) {
  if (arguments.positional.empty())
    throw Fault("the test needs a value to compare with");
  return arguments.positional[0];
}

int64_t remainder(const Value& value, const Value& divisor) {
  if (!(value.is_integer() || value.is_bool()) || !divisor.is_integer() ||
      divisor.integer() == 0)
    throw Fault("the test takes whole numbers, and none is divided by 0");
  return value.integer() % divisor.integer();
}

int order(const Value& left, const CallArguments& arguments) {
  const auto result = compare(left, other_operand(arguments));
  if (!result)
    throw Fault(fmt::format(
        "values of types {} and {} cannot be compared",
        left.type(),
        other_operand(arguments).type()));
  return *result;
}

bool equals(const Value& value, const CallArguments& arguments) {
  return value == other_operand(arguments);
}

bool differs(const Value& value, const CallArguments& arguments) {
  return !(value == other_operand(arguments));
}

bool is_iterable(const Value& value, const CallArguments&) {
  return value.is_text() || value.is_list() || value.is_undefined() ||
         (value.is_dict() && !value.dict().is_namespace);
}

const std::map<std::string, ValueTest>& value_tests() {
  using Arguments = CallArguments;
  static const std::map<std::string, ValueTest> table = {
      {"defined",
       [](const Value& v, const Arguments&) { return !v.is_undefined(); }},
      {"undefined",
       [](const Value& v, const Arguments&) { return v.is_undefined(); }},
      {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
      {"string", [](const Value& v, const Arguments&) { return v.is_text(); }},
      {"mapping",
       [](const Value& v, const Arguments&) {
         return v.is_dict() && !v.dict().is_namespace;
       }},
      {"iterable", is_iterable},
      {"sequence", is_iterable},
      {"number",
       [](const Value& v, const Arguments&) {
         return v.is_number() || v.is_large_integer();
       }},
      {"integer",
       [](const Value& v, const Arguments&) {
         return v.is_integer() || v.is_large_integer();
       }},
      {"float", [](const Value& v, const Arguments&) { return v.is_float(); }},
      {"boolean", [](const Value& v, const Arguments&) { return v.is_bool(); }},
      {"true",
       [](const Value& v, const Arguments&) {
         return v.is_bool() && v.is_true();
       }},
      {"false",
       [](const Value& v, const Arguments&) {
         return v.is_bool() && !v.is_true();
       }},
      {"callable",
       [](const Value& v, const Arguments&) { return v.is_function(); }},
      {"odd",
       [](const Value& v, const Arguments&) {
         return remainder(v, int64_t{2}) != 0;
       }},
      {"even",
       [](const Value& v, const Arguments&) {
         return remainder(v, int64_t{2}) == 0;
       }},
      {"divisibleby",
       [](const Value& v, const Arguments& a) {
         return remainder(v, other_operand(a)) == 0;
       }},
      {"in",
       [](const Value& v, const Arguments& a) {
         return contains(other_operand(a), v);
       }},
      {"equalto", equals},
      {"eq", equals},
      {"==", equals},
      {"sameas", equals},
      {"ne", differs},
      {"!=", differs},
      {"lt",
       [](const Value& v, const Arguments& a) { return order(v, a) < 0; }},
      {"le",
       [](const Value& v, const Arguments& a) { return order(v, a) <= 0; }},
      {"gt",
       [](const Value& v, const Arguments& a) { return order(v, a) > 0; }},
      {"ge",
       [](const Value& v, const Arguments& a) { return order(v, a) >= 0; }}};
  return table;
}

}  // namespace

bool passes_test(
    const std::string& name,
    const Value& operand,
    const CallArguments& arguments) {
  const auto found = value_tests().find(name);
  if (found == value_tests().end())
    throw Fault(fmt::format("the test 'is {}' is not supported", name));
  return found->second(operand, arguments);
}

}  // namespace brigade::jinja
