// Packs several texts into one, for the store and for agreement among ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade {

// Puts each text behind its length: "5:hello".
std::string pack_texts(const std::vector<std::string>& texts);
// Throws CommError if `packed` is not a result of pack_texts().
std::vector<std::string> unpack_texts(std::string_view packed);

}  // namespace brigade
