#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace brigade::testing {

// A port of this machine that nobody listens on.
inline int free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener, generic, length), 0);
  EXPECT_EQ(::getsockname(listener, generic, &length), 0);
  ::close(listener);
  return ntohs(address.sin_port);
}

}  // namespace brigade::testing
