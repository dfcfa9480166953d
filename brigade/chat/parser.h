// Jinja's grammar, as far as chat templates use it.
#pragma once

#include <string>
#include <string_view>

#include "brigade/chat/syntax.h"

namespace brigade::jinja {

// `name` is what errors call the template. Throws DataError with name and line
// for what is not understood: include, extends, import, call blocks, recursive
// loops, autoescape and raw among them.
Statements parse(std::string_view source, const std::string& name);

}  // namespace brigade::jinja
