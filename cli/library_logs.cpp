#include "cli/library_logs.h"

#include <c10/util/Logging.h>

#include <cstdlib>

namespace brigade::cli {

void silence_library_logs() {
#ifdef C10_USE_GLOG
  if (std::getenv("GLOG_minloglevel") == nullptr)
    FLAGS_minloglevel = google::GLOG_FATAL;
#else
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
#endif
}

}  // namespace brigade::cli
