#include "brigade/base/version.h"

namespace brigade {

const char* version() {
  return BRIGADE_VERSION;
}

}  // namespace brigade
