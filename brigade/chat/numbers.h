// Numbers as Python makes them of text and of one another.
#pragma once

#include <optional>

#include "brigade/chat/value.h"

namespace brigade::jinja {

// int(text) and float(text): white space around it, a sign, and _ between
// digits; std::nullopt: it is none. Digits are those of ASCII.
std::optional<Value> whole_from_text(const Text& text);
std::optional<double> float_from_text(const Text& text);

// int(value), exactly. Precondition: it is finite.
Value whole_part(double value);

}  // namespace brigade::jinja
