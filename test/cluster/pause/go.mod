module hostloop.csi.dev/test/cluster/pause

go 1.24
