#pragma once

#include <string>

namespace brigade {

// The message of the Expected that `call` throws; "": it throws nothing. Other
// errors pass through.
template <typename Expected, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "";
}

}  // namespace brigade
