// Several texts in one, for the store and for agreement among ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade {

// Each text behind its length: "5:hello".
std::string pack_texts(const std::vector<std::string>& texts);
// Throws CommError when `packed` is not what pack_texts() returned.
std::vector<std::string> unpack_texts(std::string_view packed);

}  // namespace brigade
