#pragma once

namespace brigade::cli {

// Keeps the log lines of libtorch's libraries off stderr: what they report
// reaches the user as an error of Brigade's. GLOG_minloglevel in the
// environment turns them on; TORCH_CPP_LOG_LEVEL where libtorch has no glog.
void silence_library_logs();

}  // namespace brigade::cli
