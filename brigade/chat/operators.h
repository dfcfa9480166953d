// Python's operators on values.
#pragma once

#include <string>

#include "brigade/chat/value.h"

namespace brigade::jinja {

// left op right for + - * / // % ** ~. Throws Fault for types that it does not
// take, a division by zero, and results too large.
Value binary(const std::string& op, const Value& left, const Value& right);

// Whether left op right, for == != < <= > >= in and "not in".
bool compares(const std::string& op, const Value& left, const Value& right);

Value negative(const Value& value);

// operand[begin:end:step] of a list or a string, None where left out.
Value slice(
    const Value& operand,
    const Value& begin,
    const Value& end,
    const Value& step);

}  // namespace brigade::jinja
