// Jinja's tests: what stands behind `is`.
#include <fmt/format.h>

#include "brigade/chat/builtins.h"

namespace brigade::jinja {
namespace {

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

}  // namespace

bool passes_test(
    const std::string& name,
    const Value& operand,
    const CallArguments& arguments) {
  const bool is_mapping = operand.is_dict() && !operand.dict().is_namespace;
  if (name == "defined")
    return !operand.is_undefined();
  if (name == "undefined")
    return operand.is_undefined();
  if (name == "none")
    return operand.is_none();
  if (name == "string")
    return operand.is_text();
  if (name == "mapping")
    return is_mapping;
  if (name == "iterable" || name == "sequence")
    return is_mapping || operand.is_text() || operand.is_list() ||
           operand.is_undefined();
  if (name == "number")
    return operand.is_number() || operand.is_large_integer();
  if (name == "integer")
    return operand.is_integer() || operand.is_large_integer();
  if (name == "float")
    return operand.is_float();
  if (name == "boolean")
    return operand.is_bool();
  if (name == "true")
    return operand.is_bool() && operand.is_true();
  if (name == "false")
    return operand.is_bool() && !operand.is_true();
  if (name == "callable")
    return operand.is_function();
  if (name == "odd")
    return remainder(operand, int64_t{2}) != 0;
  if (name == "even")
    return remainder(operand, int64_t{2}) == 0;
  if (name == "divisibleby")
    return remainder(operand, other_operand(arguments)) == 0;
  if (name == "in")
    return contains(other_operand(arguments), operand);
  if (name == "equalto" || name == "eq" || name == "==")
    return operand == other_operand(arguments);
  if (name == "sameas")
    return operand.type() == other_operand(arguments).type() &&
           operand == other_operand(arguments);
  if (name == "ne" || name == "!=")
    return !(operand == other_operand(arguments));
  if (name == "lt")
    return order(operand, arguments) < 0;
  if (name == "le")
    return order(operand, arguments) <= 0;
  if (name == "gt")
    return order(operand, arguments) > 0;
  if (name == "ge")
    return order(operand, arguments) >= 0;
  throw Fault(fmt::format("the test 'is {}' is not supported", name));
}

}  // namespace brigade::jinja
