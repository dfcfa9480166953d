#pragma once

namespace brigade {

// The version of the program and the library: "0.1.0".
const char* version();

}  // namespace brigade
