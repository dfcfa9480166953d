#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace brigade {

// The bytes that RFC 4648's base64, with padding, stands for; std::nullopt for
// anything else.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace brigade
