#include "cli/library_logs.h"

#include <c10/util/Logging.h>

#include <cstdlib>
#include <iostream>
#include <streambuf>
#include <string_view>

namespace brigade::cli {
namespace {

// What libraries write to std::cerr (we do not), less Gloo's notes of who is
// connected: one write each, "[./gloo/transport/...:243] INFO ...".
class WithoutGlooNotes : public std::streambuf {
 public:
  explicit WithoutGlooNotes(std::streambuf* inner) : inner_(inner) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::string_view line(text, static_cast<size_t>(size));
    if (line.starts_with('[') && line.find("gloo/") != std::string_view::npos &&
        line.find("] INFO ") != std::string_view::npos)
      return size;
    return inner_->sputn(text, size);
  }
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof()))
      return traits_type::not_eof(c);
    return inner_->sputc(traits_type::to_char_type(c));
  }
  int sync() override { return inner_->pubsync(); }

 private:
  std::streambuf* inner_;
};

}  // namespace

void silence_library_logs() {
  // Never destroyed: libraries may write until the very end.
  std::cerr.rdbuf(new WithoutGlooNotes(std::cerr.rdbuf()));
#ifdef C10_USE_GLOG
  if (std::getenv("GLOG_minloglevel") == nullptr)
    FLAGS_minloglevel = google::GLOG_FATAL;
#else
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);
  c10::initLogging();
#endif
}

}  // namespace brigade::cli
